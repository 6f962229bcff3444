const about = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const LABELS = {think: "Thought", observation: "Observation", reasoning: "Reasoning", prediction: "Prediction", answer: "Answer"};
const ARROWS = {ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right"};
let shown = null, busy = false, playing = false;

const make = (name, text, kind) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
};

const signed = value => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

async function call(path, body) {
  if (busy) return false;
  busy = true;
  draw();
  try {
    const reply = await fetch(path, {
      method: "POST",
      headers: {"Content-Type": "application/json", "X-Key": about.key},
      body: JSON.stringify(body ?? {}),
    });
    const found = await reply.json();
    if (!reply.ok) throw new Error(typeof found.detail === "string" ? found.detail : JSON.stringify(found.detail));
    at("notice").hidden = true;
    if (found.page) say(`Saved: ${found.page} (vagen view opens it)`);
    else shown = found;
    return true;
  } catch (error) {
    playing = false;
    say(error.message);
    return false;
  } finally {
    busy = false;
    draw();
  }
}

function say(text) {
  at("notice").textContent = text;
  at("notice").hidden = false;
}

const start = level => {
  playing = false;
  at("level").value = level;
  history.replaceState(null, "", `#${level}`);
  return call("start", {level});
};

function texts() {
  const given = {};
  for (const field of at("answer").querySelectorAll("input")) if (field.value.trim()) given[field.name] = field.value.trim();
  return given;
}

function act(action) {
  const field = at("answer").elements.answer;
  if (!at("writing").open) {
    field.value = action;
    return answer();
  }
  field.value = [field.value.trim(), action].filter(Boolean).join(` ${about.separator} `);
}

async function answer() {
  playing = false;
  if (await call("answer", {texts: texts()})) for (const field of at("answer").querySelectorAll("input")) field.value = "";
}

async function agentPlays(toEnd) {
  playing = toEnd && !playing;
  do {
    if (!await call("agent")) break;
    if (playing) await new Promise(done => setTimeout(done, 400));
  } while (playing && !shown.done);
  playing = false;
  draw();
}

function step(each) {
  const item = make("li", undefined, each.format_correct ? "" : "bad");
  const head = make("header");
  head.append(make("span", `${each.by}: ${each.actions.join(", ") || "no action"}`), make("span", signed(each.reward)));
  const list = make("dl");
  const row = (name, text, kind) => list.append(make("dt", name), make("dd", text, kind));
  if (!each.format_correct) row("Wrong layout", each.answer);
  for (const [name, text] of Object.entries(each.sections)) if (name !== "answer" && text !== "-") row(LABELS[name] ?? name, text);
  row("True then", each.truth, "truth");
  if (each.actions.length && !each.effective) row("", "nothing changed");
  item.append(head, list);
  return item;
}

function draw() {
  const over = !shown || shown.done;
  for (const button of document.querySelectorAll("#actions button, #answer button, #step")) button.disabled = busy || over;
  at("run").disabled = over;
  at("save").disabled = busy || !shown?.whole;
  if (!shown) return;
  at("turn").textContent = `turn ${shown.turn}`;
  at("score").textContent = signed(shown.score);
  at("outcome").textContent = shown.error || (shown.done ? (shown.success ? "won" : "not won") : "");
  at("outcome").className = shown.success ? "won" : "lost";
  at("text").textContent = shown.text;
  at("text").hidden = !shown.text;
  at("truth").textContent = shown.truth;
  at("frames").replaceChildren(...shown.frames.map(address => {
    const picture = make("img");
    picture.src = address;
    picture.alt = `what the agent sees at turn ${shown.turn}`;
    return picture;
  }));
  at("steps").replaceChildren(...shown.steps.map(step).reverse());
  at("steps").reversed = true;
}

for (const [number, action] of about.actions.entries()) {
  const button = make("button", action);
  button.dataset.action = action.toLowerCase();
  if (number < 9) button.append(" ", make("kbd", String(number + 1)));
  button.addEventListener("click", () => act(action));
  at("actions").append(button);
}
for (const name of about.sections) {
  const label = make("label", `${LABELS[name]}${name === "answer" ? "" : " (may stay empty)"}`);
  const field = make("input");
  field.name = name;
  field.autocomplete = "off";
  label.append(field);
  at("answer").append(label);
}
at("answer").append(make("button", "Give this answer"));
at("writing").open = !about.actions.length;
at("prompt").textContent = about.prompt;
at("step").firstChild.textContent = `A turn of ${about.agent} `;
at("run").firstChild.textContent = `Let ${about.agent} play on `;

at("answer").addEventListener("submit", event => { event.preventDefault(); answer(); });
at("levels").addEventListener("submit", event => { event.preventDefault(); start(Number(at("level").value)); });
at("next").addEventListener("click", () => start(Number(at("level").value) + 1));
at("step").addEventListener("click", () => agentPlays(false));
at("run").addEventListener("click", () => agentPlays(true));
at("save").addEventListener("click", () => call("save"));
document.addEventListener("keydown", event => {
  if (event.target.closest("input, button, summary") || event.ctrlKey || event.metaKey || event.altKey) return;
  const pressed = ARROWS[event.key] ?? about.actions[Number(event.key) - 1]?.toLowerCase();
  const button = [...document.querySelectorAll("#actions button")].find(each => each.dataset.action === pressed);
  if (button) button.click();
  else if (event.key === " ") at("step").click();
  else if (event.key === "Enter") at("run").click();
  else return;
  event.preventDefault();
});
start(Number(location.hash.slice(1)) || 0);
