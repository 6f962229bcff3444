// One trajectory on the page: its facts, and a card per turn.

const TAG = /<(\/?)(think|observation|reasoning|prediction|answer|memory)>/g;

/** Response with its tags coloured; an unknown or unclosed tag is ordinary text. */
function taggedText(text) {
  const root = el("div", { class: "text" });
  const open = [root];
  let from = 0;
  for (const match of text.matchAll(TAG)) {
    appendText(open[open.length - 1], text.slice(from, match.index));
    from = match.index + match[0].length;
    const label = el("span", { class: "tag" }, match[0]);
    if (!match[1] && open.length < 16) {
      const block = el("span", { class: "in-" + match[2] }, label);
      open[open.length - 1].append(block);
      open.push(block);
    } else {
      open[open.length - 1].append(label);
      if (match[1] && open[open.length - 1].classList.contains("in-" + match[2])) open.pop();
    }
  }
  appendText(open[open.length - 1], text.slice(from));
  return root;
}

const badge = (text, kind = "", title = undefined) => appendText(el("span", { class: "badge " + kind, title }), String(text));

/** Facts of a trajectory as badges: how it ended. */
function outcome(t) {
  const badges = [t.status === "env_error" ? badge("env error", "bad") : t.success ? badge("success", "good") : badge("failed", "bad")];
  if (t.status === "truncated_tokens") badges.push(badge("token budget", "warn", "The token budget ended the episode"));
  else if (t.truncated) badges.push(badge("truncated", "warn", "The turn or step limit ended the episode"));
  if (invalid(t)) badges.push(badge("invalid turn", "warn", "A turn whose layout or action was not valid"));
  return badges;
}

function frame(index, caption) {
  if (index === null) return el("figure", {}, el("figcaption", {}, caption), el("div", { class: "missing" }, "frame missing"));
  const image = el("img", { src: imageUri(index), alt: caption, title: "Enlarge" });
  image.addEventListener("click", () => image.classList.toggle("large"));
  return el("figure", {}, el("figcaption", {}, caption), image);
}

const GLYPHS = { wall: "", hole: "○", target: "★", box: "■", player: "●" };
const places = (value) => (Array.isArray(value) && Array.isArray(value[0]) ? value : Array.isArray(value) && value.length === 2 ? [value] : []);

/** Objects of each cell of a grid state ("row,column" to names), or null for another kind of state. */
function cells(state) {
  if (!state || !Array.isArray(state.size) || !Array.isArray(state.player)) return null;
  const found = new Map();
  const put = (name, value) => {
    for (const [row, column] of places(value)) found.set(`${row},${column}`, [...(found.get(`${row},${column}`) || []), name]);
  };
  put("wall", state.walls);
  put("hole", state.holes);
  put("target", state.target || state.targets);
  put("box", state.boxes);
  put("player", state.player);
  return found;
}

function grid(state, other, caption) {
  const found = cells(state);
  const [height, width] = state.size;
  if (!(height > 0 && width > 0 && height * width <= 1024)) return null;
  const compare = other ? cells(other) : null;
  const box = el("div", { class: "grid", role: "img", "aria-label": caption });
  box.style.gridTemplateColumns = `repeat(${width}, 1fr)`;
  for (let row = 0; row < height; row++)
    for (let column = 0; column < width; column++) {
      const names = found.get(`${row},${column}`) || [];
      const before = compare ? compare.get(`${row},${column}`) || [] : names;
      const changed = compare && names.join() !== before.join();
      const top = names[names.length - 1];
      box.append(el("i", { class: names.join(" ") + (changed ? " changed" : ""), title: `row ${row}, column ${column}: ${names.join(", ") || "free"}` }, top ? GLYPHS[top] : ""));
    }
  return el("figure", {}, el("figcaption", {}, caption), box);
}

function truth(turn) {
  const before = DATA.states[turn.state];
  const after = DATA.states[turn.next];
  const parts = [];
  if (cells(before) && cells(after)) {
    const present = ["player", "target", "hole", "box", "wall"].filter((name) => [...cells(before).values()].flat().includes(name));
    parts.push(el("div", { class: "grids" }, grid(before, null, "truth before"), grid(after, before, "truth after")));
    parts.push(el("div", { class: "key" }, present.map((name) => (GLYPHS[name] || "▇") + " " + name).join("   ")));
  }
  const json = el("details", {}, el("summary", {}, "Ground truth as data"));
  json.addEventListener("toggle", () => {
    if (json.open && json.children.length === 1)
      json.append(appendText(el("pre", { class: "json" }), `before ${JSON.stringify(before)}\nafter  ${JSON.stringify(after)}`));
  });
  if (!parts.length) json.open = true;
  return [...parts, json];
}

const PARTS = ["env", "format", "judge_observation", "judge_prediction"];

/** Reward parts that a turn earned; a part without a value is named as absent, not as 0. */
function rewards(turn) {
  const names = [...new Set([...PARTS.filter((name) => name in turn.rewards), ...Object.keys(turn.rewards)])];
  const line = el("div", { class: "rewards" });
  let sum = 0;
  for (const name of names) {
    const value = turn.rewards[name];
    sum += value === null ? 0 : value;
    line.append(el("span", {}, el("span", { class: "name" }, name.replace("judge_", "judge ") + " "), value === null ? el("span", { class: "absent" }, "absent") : el("b", {}, plain(value))));
  }
  line.append(el("span", {}, el("span", { class: "name" }, "sum "), el("b", {}, plain(sum))));
  return line;
}

function meter(name, value) {
  if (value === null || value === undefined) return el("span", { class: "meter" }, name, badge("not judged"));
  const fill = svg("rect", { class: "fill", x: 0, y: 1, width: 56 * Math.max(0, Math.min(1, value)), height: 6, rx: 3 });
  const bar = svg("svg", { viewBox: "0 0 56 8", "aria-hidden": "true" }, svg("rect", { class: "track", x: 0, y: 1, width: 56, height: 6, rx: 3 }), fill);
  return el("span", { class: "meter" }, name, bar, el("b", {}, number(value, 2)));
}

// Why a gate refused a text: what follows the colon of a flag.
const FLAGS = {
  characters: "it holds characters that hide what a text says",
  hedge: "it does not commit itself: alternatives, doubt, conditions, questions",
  judge_directed: "it speaks to the judge instead of about the state",
  copied_prompt: "it was copied from the prompt",
  too_long: "it is far longer than a description of the state needs to be",
  no_entity: "it names nothing of the state",
  repeated: "it says the same thing several times",
  contradiction: "two of its statements cannot both be true",
  not_understood: "the rules cannot read it",
  copied_observation: "it repeats the observation, though the state changed",
};

function flagBadge(flag) {
  const why = FLAGS[flag.split(":")[1]];
  const node = badge("⚑ " + flag + (why ? ": " + why : ""), "warn wrap");
  node.title = why ? `The judge gave this text 0: ${why}` : "The judge gave this text 0";
  return node;
}

function judgement(turn) {
  const line = el("div", { class: "line" }, el("span", { class: "what" }, "judge"));
  if (!turn.verdict) line.append(badge("not judged"));
  else {
    line.append(meter("observation", turn.verdict.observation), meter("prediction", turn.verdict.prediction));
    for (const flag of turn.verdict.flags || []) line.append(flagBadge(flag));
    for (const place of turn.verdict.absent || []) line.append(badge("no verdict: " + place, "warn wrap"));
  }
  return line;
}

function parsedLine(turn) {
  const { parsed, metrics } = turn;
  const line = el("div", { class: "line" }, el("span", { class: "what" }, "parsed"));
  line.append(parsed.format_correct ? badge("format ok", "good") : badge("format wrong", "bad"));
  const actions = Array.isArray(parsed.actions) ? parsed.actions : [];
  line.append(...(actions.length ? actions.map((action) => badge("→ " + action)) : [badge("no action", "warn")]));
  if (metrics.action_is_valid === false) line.append(badge("action not valid", "bad"));
  if (metrics.action_is_effective === false) line.append(badge("no effect", "warn"));
  if (parsed.memory) line.append(badge(parsed.memory === "drop" ? "drops what it saw" : "keeps what it saw"));
  if (turn.cut) line.append(badge("cut at the token limit", "warn"));
  return line;
}

/** The row that shows only the state a truncated episode stopped in. */
function stoppedIn(t, rows, index) {
  const last = rows[rows.length - 1];
  return index === t.turns.length && last && last.turn.every((k) => k < 0) ? last : undefined;
}

/** Whether a turn is the first one that is sampled in its row. */
function begins(row, index) {
  return row.turn[row.mask.indexOf(1)] === index;
}

/** Tokens of one turn, taken from the row that trains it; filled when tokens are shown. */
async function fillTokens(holder, t, index, color) {
  let rows;
  try {
    rows = await tokenRows(t);
  } catch (error) {
    return void holder.replaceChildren(el("span", { class: "label" }, "Tokens cannot be decoded here: " + error.message));
  }
  const at = (row, wanted) => Array.from({ length: row.length }, (_, i) => i).filter((i) => wanted(i));
  const row = rows.find((r) => r.turn.some((k, i) => k === index && r.mask[i])) || rows.find((r) => r.turn.includes(index)) || stoppedIn(t, rows, index);
  if (!row) return void holder.replaceChildren(el("span", { class: "label" }, "No tokens of this part are in the batch."));
  const shown = row.turn.includes(index) ? index : -1;
  const positions = at(row, (i) => row.turn[i] === shown);
  const sampled = positions.filter((i) => row.mask[i]).length;
  const name = !sampled ? `${positions.length} tokens` : `${sampled} sampled of ${positions.length} tokens`;
  holder.replaceChildren(el("div", { class: "label" }, `${name}${rows.length > 1 ? `, row ${row.index}` : ""}`), tokenStrip(row, positions, color));
  const before = begins(row, index) && row.index > 0 ? at(row, (i) => i < positions[0]) : [];
  if (before.length) holder.append(el("details", {}, el("summary", { class: "label" }, `context of row ${row.index}: ${before.length} tokens before`), tokenStrip(row, before, color)));
}

function turnCard(t, index, view) {
  const turn = t.turns[index];
  const next = t.turns[index + 1];
  const frames = el("div", { class: "frames" });
  turn.images.forEach((image, i) => frames.append(frame(image, turn.images.length > 1 ? `frame ${i + 1} seen` : "frame seen")));
  (next ? next.images : t.last).forEach((image) => frames.append(frame(image, "frame after")));
  const seen = el("div", { class: "seen" }, frames.children.length ? frames : null, truth(turn));
  const said = el("div", { class: "said" });
  if (turn.obs) said.append(el("div", {}, el("div", { class: "label" }, "observation"), appendText(el("p", { class: "text obs-text" }), turn.obs)));
  said.append(el("div", {}, el("div", { class: "label" }, "response"), el("div", { class: "response" }, turn.text ? taggedText(turn.text) : el("span", { class: "label" }, "empty"))));
  if (turn.summary) said.append(el("div", { class: "line" }, badge("summary", "", "Takes the place of the turns before it; the environment does not see it")));
  else said.append(parsedLine(turn), judgement(turn));
  let ready = null;
  if (view.tokens) {
    const holder = el("div", { class: "tokens" }, el("span", { class: "label" }, "decoding …"));
    said.append(holder);
    ready = fillTokens(holder, t, index, view.color);
  }
  const card = el("article", { class: "turn", id: "turn-" + index }, el("header", {}, el("h3", {}, `Turn ${index + 1}`), rewards(turn)), el("div", { class: "body" }, seen, said));
  card.ready = ready;
  return card;
}

/** Tokens outside the turns, on demand: the system prompt (-1) or what followed the last turn. */
function tokensCard(t, index, name, view) {
  if (!view.tokens) return null;
  const holder = el("div", { class: "tokens" });
  const card = el("details", { class: "turn" }, el("summary", { class: "tokens" }, name), holder);
  card.addEventListener("toggle", () => card.open && !holder.children.length && fillTokens(holder, t, index, view.color));
  return card;
}

function facts(t) {
  const fact = (name, value) => (value === null || value === "" ? null : el("span", {}, name + " ", appendText(el("b"), String(value))));
  const length = `${t.sampled} sampled of ${t.tokens}`;
  return el("div", { class: "facts" }, fact("environment", t.config === t.env ? t.env : `${t.env} (${t.config})`), fact("seed", t.seed), fact("level", t.level.slice(0, 16)), fact("group", t.group), fact("ended", t.status === "env_error" ? "by an error" : t.terminated ? "terminated" : t.truncated ? "truncated" : "stopped"), fact("tokens", length), t.bootstrap === null ? null : fact("bootstrap value", number(t.bootstrap)));
}
