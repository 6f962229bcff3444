// The page: list, filters, keys and the address, over one view state.

const view = { t: null, m: MOMENTS.length - 1, filter: "all", q: "", sort: "order", color: "mask", tokens: false, theme: null };
let chosen = [];
const byId = (id) => document.getElementById(id);
const list = byId("list");
const detail = byId("detail");

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const index = Number(given.get("t"));
  view.t = given.has("t") && TRAJECTORIES[index] ? index : null;
  if (view.t !== null && MOMENTS.length) view.m = TRAJECTORIES[view.t].moment;
  view.filter = FILTERS.some(([key]) => key === given.get("filter")) ? given.get("filter") : "all";
  view.sort = Object.keys(SORTS).includes(given.get("sort")) ? given.get("sort") : "order";
  view.q = given.get("q") || "";
  view.color = COLORS.some(([key]) => key === given.get("color")) && available(given.get("color")) ? given.get("color") : "mask";
  view.tokens = given.has("color") || given.get("tokens") === "1";
  if (["light", "dark"].includes(given.get("theme"))) view.theme = given.get("theme");
}

function writeAddress() {
  const entries = { t: view.t, filter: view.filter === "all" ? null : view.filter, sort: view.sort === "order" ? null : view.sort, q: view.q || null, color: view.tokens ? view.color : null, theme: view.theme };
  const address = new URLSearchParams(Object.entries(entries).filter(([, value]) => value !== null)).toString();
  try {
    window.history.replaceState(null, "", "#" + address);
  } catch {
    // A sandboxed frame may not change its address; the page works without.
  }
}

function applyTheme() {
  const dark = view.theme ? view.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

function drawFilters() {
  byId("filters").replaceChildren(
    ...FILTERS.map(([key, name, title, test]) => {
      const count = TRAJECTORIES.filter((t) => at(t, view.m) && test(t)).length;
      return el("button", { type: "button", title, class: count ? "" : "empty", "aria-pressed": String(key === view.filter), onclick: () => change({ filter: key }) }, name, el("span", { class: "count" }, String(count)));
    }),
  );
}

function item(t) {
  const last = t.last.length || !t.turns.length ? t.last : t.turns[t.turns.length - 1].images;
  const image = last.length && last[last.length - 1] !== null ? el("img", { src: imageUri(last[last.length - 1]), alt: "", loading: "lazy" }) : el("div", { class: "blank" });
  const turns = t.turns.length === 1 ? "1 turn" : t.turns.length + " turns";
  return el(
    "div",
    { class: "item", role: "option", id: "item-" + t.index, "aria-selected": String(t.index === view.t), onclick: () => change({ t: t.index }) },
    image,
    el("div", { class: "who" }, appendText(el("div", { class: "name", title: t.id }), t.id), el("div", { class: "sub" }, outcome(t).flatMap((b) => [b, " "]))),
    el("div", { class: "score" }, el("div", { title: "score: sum of the environment's rewards" }, plain(t.score)), el("div", { class: "sub" }, turns)),
  );
}

function drawList() {
  chosen = select(view.filter, view.q, view.sort, view.m);
  if (view.t === null || !chosen.some((t) => t.index === view.t)) view.t = chosen.length ? chosen[0].index : null;
  list.replaceChildren(...(chosen.length ? chosen.map(item) : [el("div", { class: "none" }, "No trajectory fits this filter and search.")]));
  byId("shown").textContent = `${chosen.length} of ${TRAJECTORIES.filter((t) => at(t, view.m)).length} trajectories`;
  if (MOMENTS.length) {
    byId("moment").value = view.m;
    byId("moment-name").textContent = MOMENTS[view.m];
  }
  drawFilters();
  markSelected();
}

function markSelected() {
  for (const node of list.querySelectorAll('[aria-selected="true"]')) node.setAttribute("aria-selected", "false");
  const node = view.t === null ? null : byId("item-" + view.t);
  if (!node) return;
  node.setAttribute("aria-selected", "true");
  list.setAttribute("aria-activedescendant", node.id);
  node.scrollIntoView({ block: "nearest" });
}

function toolbar() {
  const colors = COLORS.map(([key, name]) => {
    const usable = available(key);
    const title = usable ? `Colour tokens by ${name.toLowerCase()}` : `This batch has no column for ${name.toLowerCase()}`;
    return el("button", { type: "button", title, disabled: !usable, "aria-pressed": String(view.tokens && key === view.color), onclick: () => change({ color: key, tokens: true }) }, name);
  });
  const shown = el("button", { type: "button", title: "Show or hide tokens (t)", "aria-pressed": String(!view.tokens), onclick: () => change({ tokens: false }) }, "Off");
  return el("div", { class: "toolbar", id: "tokens-bar" }, el("span", {}, "Tokens"), el("span", { class: "segmented", role: "group", "aria-label": "Token colouring" }, shown, colors), view.tokens ? legend(view.color) : null);
}

/** How a level went at every moment; a press goes there. */
function course(t) {
  if (!MOMENTS.length) return null;
  const steps = lives(t).map((other) => el("button", { type: "button", class: other.success ? "won" : "missed", title: `${MOMENTS[other.moment]}: ${other.success ? "solved" : "not solved"}`, "aria-pressed": String(other === t), onclick: () => change({ t: other.index, m: other.moment }) }, MOMENTS[other.moment]));
  return el("div", { class: "toolbar" }, el("span", {}, "This level"), el("span", { class: "segmented", role: "group", "aria-label": "This level over the training" }, steps));
}

function drawDetail(keepScroll) {
  const top = keepScroll ? detail.scrollTop : 0;
  const t = view.t === null ? null : TRAJECTORIES[view.t];
  tooltip.hidden = true;
  if (!t) return void detail.replaceChildren(el("div", { class: "none" }, "Nothing to show."));
  const cards = t.turns.map((_, index) => turnCard(t, index, view));
  const heading = el("div", { class: "top" }, appendText(el("h2"), t.id), outcome(t), badge("score " + plain(t.score)));
  const error = t.error ? appendText(el("div", { class: "error" }), t.error) : null;
  detail.replaceChildren(...[heading, course(t), facts(t), error, toolbar(), tokensCard(t, -1, "System prompt, as tokens", view), ...cards, t.turns.length && t.last.length ? tokensCard(t, t.turns.length, "Observation after the last turn, as tokens", view) : null].filter((node) => node));
  if (!cards.length) detail.append(el("div", { class: "none" }, "This trajectory has no turn."));
  detail.scrollTop = top;
  if (keepScroll) Promise.all(cards.map((card) => card.ready)).then(() => (detail.scrollTop = top));
}

/** Changes the view and redraws what depends on it. */
function change(next) {
  const before = { ...view };
  Object.assign(view, next);
  const listChanged = ["filter", "q", "sort", "m"].some((key) => view[key] !== before[key]);
  if (listChanged) drawList();
  else if (view.t !== before.t) markSelected();
  if (view.t !== before.t || view.tokens !== before.tokens) drawDetail(view.t === before.t);
  else if (view.color !== before.color) {
    byId("tokens-bar").replaceWith(toolbar());
    for (const strip of detail.querySelectorAll(".strip")) recolor(strip, view.color);
  }
  if (view.theme !== before.theme) applyTheme();
  writeAddress();
}

/** Goes to another moment, with the same level. */
function moveTo(moment) {
  const shown = view.t === null ? null : TRAJECTORIES[view.t];
  const same = shown && lives(shown).find((other) => other.moment === moment);
  change({ m: moment, ...(same ? { t: same.index } : {}) });
}

function move(step) {
  const at = chosen.findIndex((t) => t.index === view.t);
  const next = chosen[Math.max(0, Math.min(chosen.length - 1, at + step))];
  if (next) change({ t: next.index });
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  f: () => change({ filter: FILTERS[(FILTERS.findIndex(([key]) => key === view.filter) + 1) % FILTERS.length][0] }),
  t: () => change({ tokens: !view.tokens }),
  c: () => {
    const usable = COLORS.map(([key]) => key).filter(available);
    change(view.tokens ? { color: usable[(usable.indexOf(view.color) + 1) % usable.length] } : { tokens: true });
  },
  h: () => MOMENTS.length && moveTo(Math.max(0, view.m - 1)),
  l: () => MOMENTS.length && moveTo(Math.min(MOMENTS.length - 1, view.m + 1)),
  d: () => change({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" }),
  "?": () => byId("help").showModal(),
  "/": () => byId("search").focus(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") leaveSearch(event);
    return;
  }
  const arrow = event.target === list && { ArrowDown: KEYS.j, ArrowUp: KEYS.k }[event.key];
  const action = arrow || KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

/** Escape clears the search, then leaves it. */
function leaveSearch(event) {
  if (event.target.id === "search" && event.target.value) {
    event.preventDefault();
    clearTimeout(typing);
    event.target.value = "";
    change({ q: "" });
  } else event.target.blur();
}

let typing = null;
byId("search").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ q: event.target.value }), 120);
});
byId("sort").addEventListener("change", (event) => change({ sort: event.target.value }));
if (MOMENTS.length) byId("moment").addEventListener("input", (event) => moveTo(Number(event.target.value)));
byId("theme-button").addEventListener("click", KEYS.d);
byId("help-button").addEventListener("click", KEYS["?"]);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
addEventListener("hashchange", start);
installTooltip(detail);

function start() {
  readAddress();
  byId("search").value = view.q;
  byId("sort").value = view.sort;
  applyTheme();
  drawList();
  drawDetail(false);
}

list.classList.toggle("frameless", !DATA.images.length);
TRAJECTORIES.forEach((t, index) => (t.index = index));
start();
