// Token strips: the exact tokens of a turn, coloured by mask, advantage, log-probability or value.

const COLORS = [
  ["mask", "Mask", null],
  ["advantage", "Advantage", "advantages"],
  ["logprob", "Log-prob", "rollout_logprobs"],
  ["value", "Value", "values"],
];
const available = (color) => color === "mask" || DATA.scales[color] !== undefined;
const FEW = 4; // a run of this many equal tokens that were not sampled is shown as one

function paint(node, color, value) {
  node.classList.remove("pos", "neg", "heat", "odd");
  if (color === "mask" || value === undefined) return;
  if (!Number.isFinite(value)) return void node.classList.add("odd");
  const { center, scale } = DATA.scales[color];
  const strength = Math.min(1, Math.abs(value - center) / (scale || 1));
  node.style.setProperty("--a", strength.toFixed(3));
  if (strength > 0) node.classList.add(color === "logprob" ? "heat" : value > center ? "pos" : "neg");
}

function tokenText(word) {
  const text = DATA.vocab[word];
  return /^ +$/.test(text) ? "␣".repeat(text.length) : text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥");
}

/** Strip of the tokens of `row` at `positions`; rows keep their own place for the tooltip. */
function tokenStrip(row, positions, color) {
  const strip = el("div", { class: "strip" });
  strip.row = row;
  for (let i = 0; i < positions.length; i++) {
    const at = positions[i];
    let run = 1;
    while (!row.mask[at] && i + run < positions.length && row.words[positions[i + run]] === row.words[at] && !row.mask[positions[i + run]]) run++;
    const shown = run >= FEW ? run : 1;
    const text = DATA.vocab[row.words[at]];
    const token = el("span", { class: "tok " + (row.mask[at] ? "sampled" : "given") + (/^<\|.*\|>$/.test(text) ? " special" : "") });
    appendText(token, tokenText(row.words[at]) + (shown > 1 ? " ×" + shown : ""));
    token.at = at;
    strip.append(token);
    i += shown - 1;
  }
  recolor(strip, color);
  return strip;
}

function recolor(strip, color) {
  strip.className = "strip " + color;
  const column = COLORS.find(([key]) => key === color)[2];
  const values = column && strip.row.columns[column];
  for (const token of strip.children) paint(token, color, values && strip.row.mask[token.at] ? values[token.at] : undefined);
}

function legend(color) {
  if (color === "mask")
    return el("span", { class: "legend" }, el("i", { class: "swatch sampled" }), "sampled, trained on", el("i", { class: "swatch given" }), "given (prompt, observation)");
  const { center, scale } = DATA.scales[color];
  const ends = color === "logprob" ? ["≤ " + number(-scale, 1), "0 nats"] : ["≤ " + number(center - scale, 2), "≥ " + number(center + scale, 2)];
  const note = color === "logprob" ? "stronger: less likely" : "one scale for the whole batch";
  return el("span", { class: "legend" }, ...[ends[0], el("i", { class: "bar " + color }), ends[1], "· " + note].map((part) => el("span", {}, part)));
}

const COLUMN_NAMES = {
  rollout_logprobs: "log-prob (rollout)", old_logprobs: "log-prob (old)", ref_logprobs: "log-prob (reference)",
  advantages: "advantage", values: "value", returns: "return", rewards: "reward",
};

const tooltip = document.getElementById("tooltip");
function showTooltip(token, x, y) {
  const row = token.parentNode.row;
  const at = token.at;
  const line = (name, value) => el("tr", {}, el("td", {}, name), el("td", {}, value));
  const text = appendText(el("span"), JSON.stringify(DATA.vocab[row.words[at]]));
  const body = [line("text", text), line("id", DATA.ids[row.words[at]]), line("position", `${at} of row ${row.index}`)];
  body.push(line("mask", row.mask[at] ? "sampled" : "given"));
  for (const [name, values] of Object.entries(row.columns))
    if (row.mask[at] || (name !== "rollout_logprobs" && values[at] !== 0)) body.push(line(COLUMN_NAMES[name] || name, number(values[at], 4)));
  tooltip.replaceChildren(el("table", {}, body));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  tooltip.style.left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 8)) + "px";
  tooltip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
}

function installTooltip(root) {
  root.addEventListener("mousemove", (event) => {
    if (event.target.classList && event.target.classList.contains("tok")) showTooltip(event.target, event.clientX, event.clientY);
    else tooltip.hidden = true;
  });
  root.addEventListener("mouseleave", () => (tooltip.hidden = true));
}
