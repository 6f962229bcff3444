// Data of the page: what Python embedded, and what is decoded from it on demand.

const DATA = JSON.parse(document.getElementById("data").textContent);
const TRAJECTORIES = DATA.trajectories;
const MOMENTS = DATA.moments || [];

/** Element with attributes, properties and children; text is only ever set as text, never as HTML. */
function el(tag, options, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const text = Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toPrecision(3) : value.toFixed(digits);
  return text.replace("-", "−");
}

const plain = (value) => (Number.isFinite(value) ? String(Math.round(value * 1000) / 1000).replace("-", "−") : number(value));
const imageUri = (index) => "data:image/png;base64," + DATA.images[index];

// Characters that would be invisible or reorder the text around them are shown by their code.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Appends untrusted text to `parent`, hidden characters made visible. */
function appendText(parent, text) {
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) parent.append(text.slice(from, match.index));
    const code = match[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    parent.append(el("span", { class: "control" }, "U+" + code));
    from = match.index + match[0].length;
  }
  if (from < text.length) parent.append(text.slice(from));
  return parent;
}

const cut = (t) => t.truncated || t.status === "truncated_tokens";
const invalid = (t) => t.turns.some((turn) => !turn.summary && (turn.parsed.format_correct === false || turn.metrics.action_is_valid === false));
const flagged = (t) => t.turns.some((turn) => turn.verdict && turn.verdict.flags && turn.verdict.flags.length);

// With moments every level is played at each: by the untrained policy first, by the trained one last.
const courses = new Map();
for (const t of TRAJECTORIES) if (MOMENTS.length) courses.set(t.level, [...(courses.get(t.level) || []), t]);
const lives = (t) => courses.get(t.level) || [];
const won = (t, value) => t.success === value && lives(t).some((other) => other.moment < t.moment && other.success !== value);

const FILTERS = [
  ["all", "All", "Every trajectory", () => true],
  ["failed", "Failed", "Not successful", (t) => !t.success],
  ["succeeded", "Succeeded", "Successful", (t) => t.success],
  ["truncated", "Truncated", "Ended by the turn, step or token limit", cut],
  ["invalid", "Invalid", "A turn whose layout or action was not valid", invalid],
  ["flagged", "Flagged", "A statement that the judge refused", flagged],
  ["error", "Env error", "The environment failed; masked from training", (t) => t.status === "env_error"],
  ...(MOMENTS.length ? [["gained", "Gained", "Solved now, and not at some time before", (t) => won(t, true)], ["lost", "Lost", "Not solved now, but at some time before", (t) => won(t, false)]] : []),
];

const SORTS = {
  "order": null,
  "score-up": (a, b) => a.score - b.score,
  "score-down": (a, b) => b.score - a.score,
  "length-down": (a, b) => b.sampled - a.sampled,
  "length-up": (a, b) => a.sampled - b.sampled,
};

const at = (t, moment) => !MOMENTS.length || t.moment === moment;

const haystacks = new Map();
function haystack(t) {
  let text = haystacks.get(t);
  if (text === undefined) {
    const parts = [t.id, t.group, t.config, t.env, t.level, t.status, t.error, "seed " + t.seed];
    for (const turn of t.turns) parts.push(turn.text, turn.obs, ...((turn.verdict && turn.verdict.flags) || []));
    text = parts.filter((part) => part).join("\n").toLowerCase();
    haystacks.set(t, text);
  }
  return text;
}

/** Trajectories of a filter and a moment that hold every word of the query, in the chosen order. */
function select(filter, query, sort, moment) {
  const test = FILTERS.find(([key]) => key === filter)[3];
  const words = query.toLowerCase().split(/\s+/).filter((word) => word);
  const chosen = TRAJECTORIES.filter((t) => at(t, moment) && test(t) && words.every((word) => haystack(t).includes(word)));
  return SORTS[sort] ? chosen.sort(SORTS[sort]) : chosen;
}

const decoded = new Map();
/** Token rows of a trajectory, inflated on first use: vocabulary index, turn, mask, and one array per column. */
function tokenRows(t) {
  if (!decoded.has(t)) decoded.set(t, inflateRows(t));
  return decoded.get(t);
}

async function inflateRows(t) {
  if (!t.rows.length) return [];
  const bytes = Uint8Array.from(atob(t.blob), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const buffer = new ArrayBuffer(planes.length);
  const numbers = new Uint8Array(buffer);
  const count = planes.length / 4;
  for (let plane = 0, at = 0; plane < 4; plane++) for (let i = 0; i < count; i++) numbers[4 * i + plane] = planes[at++];
  let offset = 0;
  const take = (Type, length) => {
    const array = new Type(buffer, offset, length);
    offset += 4 * length;
    return array;
  };
  return t.rows.map(({ index, length, columns }) => {
    const row = { index, length, words: take(Int32Array, length), turn: take(Int32Array, length), mask: take(Int32Array, length), columns: {} };
    for (const name of columns) row.columns[name] = take(Float32Array, length);
    return row;
  });
}
