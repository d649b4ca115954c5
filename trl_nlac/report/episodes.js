const PAGE = 25;
const OUTCOMES = {
  success: ["✓", "Success"],
  failure: ["✕", "Failure"],
  cut: ["…", "Cut"],
  broken: ["!", "Environment failed"],
  unknown: ["?", "Audited samples only"],
};
const SPLITS = [
  ["", "training and evaluation"],
  ["train", "training"],
  ["eval", "evaluation"],
];
const SORTS = {
  newest: ["newest", (e) => -e.step],
  oldest: ["oldest", (e) => e.step],
  best: ["highest return", (e) => -(e.return ?? -Infinity)],
  worst: ["lowest return", (e) => e.return ?? Infinity],
  longest: ["most turns", (e) => -e.turns.length],
  shortest: ["fewest turns", (e) => e.turns.length],
};
const DEFAULTS = { split: "", outcome: "", wrong: "", audited: "", q: "", sort: "newest", page: "1", episode: "" };
const SAME = 24;
const SAID = new Set(["critique", "target"]);
const LONG = { characters: 700, lines: 12 };

/** Put each turn that a critique foresees on a line of its own: its writer separates them by spaces. */
function inTurns(text) {
  return text
    .replace(/([.!?:]) +(?=\w+\([^()\n]*\))/g, "$1\n")
    .replace(/(\w+\([^()\n]*\)) +(?=[A-Z])/g, "$1\n")
    .replace(/^Future:\n/, "Future: ");
}

const haystacks = new Map();

/** Return all texts of an episode in lower case, cached for later searches. */
function haystack(episode) {
  if (!haystacks.has(episode)) {
    const words = [];
    const collect = (value) => {
      if (typeof value === "string") words.push(value);
      else if (value && typeof value === "object") Object.values(value).forEach(collect);
    };
    collect(episode);
    haystacks.set(episode, words.join("\n").toLowerCase());
  }
  return haystacks.get(episode);
}

/** Return the indices of the episodes that match the filters, in order. */
function select(state) {
  const wanted = state.q.toLowerCase();
  const [, key] = SORTS[Object.hasOwn(SORTS, state.sort) ? state.sort : DEFAULTS.sort];
  return data.episodes
    .map((episode, i) => [episode, i])
    .filter(
      ([episode]) =>
        (!state.split || episode.split === state.split) &&
        (!state.outcome || episode.outcome === state.outcome) &&
        (!state.wrong || episode.wrong) &&
        (!state.audited || episode.audited) &&
        (!wanted || haystack(episode).includes(wanted)),
    )
    .sort(([a, i], [b, j]) => key(a) - key(b) || i - j)
    .map(([, i]) => i);
}

/** Replace control characters by visible symbols. */
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (sign) =>
    sign === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + sign.charCodeAt(0)),
  );
}

/** Split a text into pieces, with the search term marked. */
function marked(text, wanted) {
  const pieces = [];
  const lower = text.toLowerCase();
  let from = 0;
  while (wanted && lower.length === text.length) {
    const at = lower.indexOf(wanted, from);
    if (at < 0) break;
    pieces.push(text.slice(from, at), el("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...pieces, text.slice(from)];
}

/** Create a block of text; a long one is folded. */
function textBlock(text, wanted, kind = "") {
  const shown = SAID.has(kind) ? inTurns(text) : text;
  const pieces = marked(visible(shown), wanted.toLowerCase());
  const block = el("div", { className: `text ${kind}`, dir: "auto" }, ...pieces);
  const isLong = text.length > LONG.characters || text.split("\n").length > LONG.lines;
  if (!isLong || pieces.length > 1) return block;
  block.classList.add("folded");
  const button = el("button", { className: "quiet", type: "button" }, "Show all");
  button.addEventListener("click", () => {
    button.textContent = block.classList.toggle("folded") ? "Show all" : "Show less";
  });
  return el("div", {}, block, button);
}

/** Create the block of a refined action, with the words marked that the action before it did not have. */
function refinedBlock(text, before, wanted) {
  const known = new Set((before ?? text).split(/\s+/));
  if (wanted || text.length > LONG.characters) return textBlock(text, wanted, "action");
  const pieces = visible(text).split(/(\s+)/);
  const marks = pieces.map((word) => (word.trim() && !known.has(word) ? el("mark", {}, word) : word));
  return el("div", { className: "text action", dir: "auto" }, ...marks);
}

function chip(text, kind = "", title = "") {
  return el("span", { className: `chip ${kind}`, title }, text);
}

/** Create the verdict's label, with the probability of a "Yes" if its score is known. */
function verdictChips(verdict, score, isWrong) {
  if (verdict === undefined) return [];
  const chance = score === undefined ? "" : `, probability ${(1 / (1 + Math.exp(-score))).toFixed(2)}`;
  const title = score === undefined ? "" : `verdict score ${format(score)} (log-odds)`;
  return [
    chip((verdict ? "Yes" : "No") + chance, verdict ? "yes" : "no", title),
    isWrong ? chip("wrong", "wrong", "The verdict differs from the outcome or from the Bellman target's.") : null,
  ];
}

function block(label, kind, chips, ...children) {
  return el("div", { className: `block ${kind}` }, el("div", { className: "label" }, label, ...chips), ...children);
}

/** Return the model's text before its action; empty if there is none. */
function thoughtOf(text, action) {
  const said = text.trim();
  if (!action || !said.endsWith(action.trim())) return said;
  return said
    .slice(0, said.length - action.trim().length)
    .replace(/\s*Action:\s*$/, "")
    .trim();
}

function sampleBlock(sample, q) {
  const figures = [
    ["critic loss", sample.critic_loss],
    ["policy loss", sample.policy_loss],
    ["priority", sample.priority],
  ];
  const known = figures.filter(([, value]) => value !== undefined);
  const chips = known.map(([name, value]) => chip(`${name} ${format(value)}`));
  const judged = verdictChips(sample.verdict, sample.verdict_score, sample.wrong);
  const kept = sample.refined_action !== undefined && sample.refined_action === sample.attempt;
  const part = (label, text, kind, ...notes) =>
    text === undefined && !notes.length
      ? null
      : el(
          "div",
          {},
          el("div", { className: "label" }, label, ...notes.filter(Boolean)),
          text === undefined
            ? null
            : kind === "refined"
              ? refinedBlock(text, sample.attempt, q)
              : textBlock(text, q, kind),
        );
  return el(
    "details",
    { className: "sample", open: true },
    el("summary", {}, `Trained on with the weights of step ${format(sample.step)}`, ...chips),
    el(
      "div",
      { className: "parts" },
      part("Critique at that time", sample.critique, "critique", ...judged),
      part("Bellman target", sample.target, "target", ...verdictChips(sample.target_verdict)),
      part("Fresh action in the same state", sample.attempt, "action"),
      part("Its critique", sample.attempt_critique, "critique", ...verdictChips(sample.attempt_verdict)),
      part(kept ? "Refined action (unchanged)" : "Refined action", sample.refined_action, "refined"),
    ),
  );
}

function turnBlock(turn, before, episode, q) {
  const follows = before && before.number === turn.number - 1;
  const observation = turn.observation ?? (turn.number === 0 ? episode.prompt : undefined);
  const thought = thoughtOf(turn.text ?? "", turn.action);
  const reward = turn.reward ? [chip(`reward ${format(turn.reward)}`, turn.reward > 0 ? "yes" : "no")] : [];
  return el(
    "li",
    { className: "turn" },
    el("h4", {}, `Turn ${turn.number + 1}`),
    observation && !follows ? block("Observation", "world", [], textBlock(observation, q)) : null,
    block(
      "Model",
      "model",
      [],
      thought && thought !== turn.action ? textBlock(thought, q, "thought") : null,
      turn.action
        ? textBlock(turn.action, q, "action")
        : el("div", { className: "text none" }, "No action could be read."),
    ),
    turn.next_observation || reward.length
      ? block("Environment", "world", reward, turn.next_observation ? textBlock(turn.next_observation, q) : null)
      : null,
    turn.critique !== undefined || turn.verdict !== undefined
      ? block(
          "Critic",
          "critic",
          verdictChips(turn.verdict, turn.verdict_score, turn.wrong),
          turn.critique === undefined ? null : textBlock(turn.critique, q, "critique"),
        )
      : null,
    ...turn.samples.map((sample) => sampleBlock(sample, q)),
  );
}

function firstWords(episode) {
  return (episode.prompt ?? episode.turns[0]?.observation ?? "").replace(/\s+/g, " ").trim();
}

/** Return the common beginning of all texts, up to the end of a word. */
function sharedStart(texts) {
  let shared = texts[0] ?? "";
  for (const text of texts) {
    while (!text.startsWith(shared)) shared = shared.slice(0, -1);
  }
  return shared.slice(0, shared.lastIndexOf(" ") + 1);
}

const greeting = sharedStart(data.episodes.filter((episode) => episode.prompt).map(firstWords));

/** Return the title of an episode in the list, without a long beginning that all share. */
function titleOf(episode) {
  const words = firstWords(episode);
  const own = greeting.length > 40 && words.startsWith(greeting) ? words.slice(greeting.length) : words;
  return visible((own || episode.task || "").slice(0, 200)) || "(no observation)";
}

function kindOf(episode) {
  if (episode.split === "train") return "training";
  return episode.dataset ? `evaluation of ${episode.dataset}` : "evaluation";
}

function outcomeMark(episode) {
  const [sign, name] = OUTCOMES[episode.outcome];
  return el("span", { className: `outcome ${episode.outcome}`, title: name, role: "img", "aria-label": name }, sign);
}

/** Return what equal episodes have in common; an audited one, or one with a mistake of the critic, has no equal. */
function likeness(i) {
  const { split, dataset, step, outcome, prompt, task, turns, wrong, audited, ...others } = data.episodes[i];
  if (wrong || audited) return i;
  const played = turns.map((turn) => [turn.action, turn.next_observation]);
  return JSON.stringify([split, dataset, step, outcome, prompt, task, played, others.return, others.failure]);
}

/** Return whether the policy learned another action than its own in an episode. */
function isRefined(i) {
  const samples = data.episodes[i].turns.flatMap((turn) => turn.samples);
  return samples.some((sample) => (sample.refined_action ?? sample.attempt) !== sample.attempt);
}

/** Fold equal episodes: return the first index of each kind, with the number of its episodes. */
function fold(found) {
  const groups = new Map();
  for (const i of found) {
    const like = likeness(i);
    groups.set(like, [...(groups.get(like) ?? []), i]);
  }
  return new Map([...groups.values()].map((group) => [group[0], group.length]));
}

function listRow(episode, i, number, isOpen, open) {
  const facts = [kindOf(episode), `step ${format(episode.step)}`];
  facts.push(`${episode.turns.length} ${episode.turns.length === 1 ? "turn" : "turns"}`);
  if (episode.return !== undefined) facts.push(`return ${format(episode.return)}`);
  const button = el(
    "button",
    { type: "button", className: "row", "aria-current": isOpen },
    outcomeMark(episode),
    el(
      "span",
      { className: "words" },
      el("span", { className: "title", dir: "auto" }, titleOf(episode)),
      el("span", { className: "last", dir: "auto" }, visible((episode.turns.at(-1)?.action ?? "").slice(0, 120))),
      el(
        "span",
        { className: "facts" },
        facts.join(" · "),
        number > 1 ? chip(`${format(number)} ×`, "", "So many equal episodes.") : null,
        episode.wrong ? chip("critic wrong", "wrong") : null,
        episode.audited ? chip("audited") : null,
      ),
    ),
  );
  button.addEventListener("click", () => open(i));
  return el("li", {}, button);
}

function pair(name, value) {
  return el("div", {}, el("dt", { dir: "auto" }, name), el("dd", { dir: "auto" }, value));
}

/** Create links to the other episodes of the same task, by step; at most `SAME` of them, evenly over time. */
function sameTask(episode, open) {
  const key = ({ task, prompt }) => (task && task !== "{}" ? task : prompt);
  const same = data.episodes
    .map((other, i) => [other, i])
    .filter(([other]) => key(other) && key(other) === key(episode));
  if (same.length < 2) return null;
  const size = Math.ceil(same.length / SAME);
  const links = same
    .filter(([other], i) => other === episode || (same.length - 1 - i) % size === 0)
    .map(([other, i]) => {
      const [sign, name] = OUTCOMES[other.outcome];
      const label = `${kindOf(other)}, step ${format(other.step)}: ${name}`;
      const isHere = other === episode;
      const node = el("button", { type: "button", className: "time", title: label, "aria-label": label });
      node.append(el("span", { className: `outcome ${other.outcome}` }, sign), short(other.step));
      node.setAttribute("aria-current", isHere);
      node.addEventListener("click", () => open(i));
      return node;
    });
  return block("The same task over time, by step", "plain", [], el("div", { className: "times" }, ...links));
}

function detail(episode, q, buttons, open) {
  const facts = [
    ["step", format(episode.step)],
    ["environment steps before", format(episode.environment_steps)],
    ["return", episode.return === undefined ? "unknown" : format(episode.return)],
    [episode.split === "eval" ? "task" : "episode", format(episode.number)],
    ["process", episode.process],
  ];
  const turns = episode.turns.map((turn, i) => turnBlock(turn, episode.turns[i - 1], episode, q));
  const parts = [
    el("div", { className: "tools" }, ...buttons),
    el(
      "h3",
      {},
      outcomeMark(episode),
      OUTCOMES[episode.outcome][1],
      el("bdi", { className: "kind" }, kindOf(episode)),
    ),
    el("dl", { className: "pairs" }, ...facts.map(([name, value]) => pair(name, String(value)))),
    episode.task && episode.task !== "{}" ? block("Task", "plain", [], textBlock(episode.task, q, "code")) : null,
    sameTask(episode, open),
    episode.failure ? block("The environment failed", "broken", [], textBlock(episode.failure, q, "code")) : null,
    episode.extra
      ? el(
          "dl",
          { className: "pairs" },
          ...Object.entries(episode.extra).map(([name, value]) => pair(visible(name), visible(value))),
        )
      : null,
    episode.turns.length || !episode.prompt ? null : block("Observation", "world", [], textBlock(episode.prompt, q)),
    el("ol", { className: "turns" }, ...turns),
  ];
  return parts.filter((part) => part !== null);
}

function choice(label, options, name, go) {
  const node = el("select", { name, "aria-label": label });
  node.append(...options.map(([value, text]) => el("option", { value }, text)));
  node.addEventListener("change", () => go({ [name]: node.value, page: "1" }));
  return node;
}

function toggle(text, name, go) {
  const box = el("input", { type: "checkbox", name });
  box.addEventListener("change", () => go({ [name]: box.checked ? "1" : "", page: "1" }));
  return el("label", { className: "toggle" }, box, text);
}

/** Build the browser of episodes. Its state is in the fragment of the URL, so that it can be bookmarked. */
function browse(root) {
  const read = () => ({ ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) });
  const go = (changes, isNewPlace = false) => {
    const state = { ...read(), ...changes };
    const told = Object.keys(DEFAULTS).filter((name) => state[name] !== DEFAULTS[name]);
    const fragment = new URLSearchParams(told.map((name) => [name, state[name]]));
    const address = new URL(location.href); // not relative: in a frame of a notebook that would be the notebook's
    address.hash = fragment;
    history[isNewPlace ? "pushState" : "replaceState"](null, "", address.href);
    render();
  };
  const open = (i) => {
    go({ episode: String(i) }, !read().episode);
    const isOnly = getComputedStyle(panes).display === "block"; // the list is not next to it
    const { top } = article.getBoundingClientRect();
    if (isOnly || top < 0 || top > innerHeight / 2) article.scrollIntoView();
  };

  const has = (name) => data.episodes.some((episode) => episode[name]);
  const kinds = Object.keys(OUTCOMES).filter((name) => data.episodes.some((episode) => episode.outcome === name));
  const splits = [...new Set(data.episodes.map((episode) => episode.split))];
  const search = el("input", { type: "search", name: "q", placeholder: "Search all texts", "aria-label": "Search" });
  let waiting;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => go({ q: search.value, page: "1" }), 150);
  });
  const filters = el(
    "div",
    { className: "filters" },
    search,
    splits.length > 1 ? choice("Split", SPLITS, "split", go) : null,
    choice("Outcome", [["", "any outcome"], ...kinds.map((name) => [name, OUTCOMES[name][1]])], "outcome", go),
    choice("Order", Object.entries(SORTS).map(([name, [text]]) => [name, text]), "sort", go),
    has("wrong") ? toggle("critic was wrong", "wrong", go) : null,
    has("audited") ? toggle("audited", "audited", go) : null,
  );
  const count = el("p", { className: "count", role: "status" });
  const list = el("ol", { className: "list" });
  const pager = el("div", { className: "pager" });
  const article = el("article", { className: "detail" });
  const panes = el("div", { className: "panes" }, el("div", { className: "side" }, count, list, pager), article);
  root.append(filters, panes);

  const button = (text, isOn, act) => {
    const node = el("button", { type: "button", disabled: !isOn }, text);
    node.addEventListener("click", act);
    return node;
  };

  /** Return the place of an episode, or of its equal, in the list. */
  function placeOf(found, episode) {
    if (!/^\d+$/.test(episode) || !data.episodes[Number(episode)]) return -1;
    const like = likeness(Number(episode));
    return found.findIndex((i) => likeness(i) === like);
  }

  function render() {
    const state = read();
    for (const control of filters.querySelectorAll("[name]")) {
      if (control.type === "checkbox") control.checked = Boolean(state[control.name]);
      else if (control !== document.activeElement) control.value = state[control.name];
    }
    const all = select(state);
    const folded = fold(all);
    const found = [...folded.keys()];
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    const page = Math.min(pages, Math.max(1, Math.trunc(Number(state.page)) || 1));
    const rows = found.slice((page - 1) * PAGE, page * PAGE);
    const episode = /^\d+$/.test(state.episode) ? data.episodes[Number(state.episode)] : undefined;
    const number = data.episodes.length;
    count.textContent = `${all.length === number ? "" : `${format(all.length)} of `}${format(number)} episodes`;
    const isOpen = (i) => String(i) === state.episode;
    list.replaceChildren(...rows.map((i) => listRow(data.episodes[i], i, folded.get(i), isOpen(i), open)));
    pager.replaceChildren(
      ...(pages > 1
        ? [
            button("‹ Back", page > 1, () => go({ page: String(page - 1) })),
            el("span", {}, `page ${page} of ${pages}`),
            button("More ›", page < pages, () => go({ page: String(page + 1) })),
          ]
        : []),
    );
    const told = found.find(isRefined) ?? found.find((i) => data.episodes[i].audited) ?? found[0];
    root.classList.toggle("open", Boolean(episode));
    const at = placeOf(found, state.episode);
    article.replaceChildren(
      ...(episode
        ? detail(episode, state.q, [
            button("All episodes", true, () => go({ episode: "" })),
            button("‹ Previous", at > 0, () => open(found[at - 1])),
            button("Next ›", at < found.length - 1, () => open(found[at + 1])),
          ], open)
        : found.length
          ? detail(data.episodes[told], state.q, [button("Open", true, () => open(told))], open)
          : [el("p", { className: "empty" }, "No episode matches these filters.")]),
    );
  }
  /** Keys: j and k for the next and the previous episode, / to search, Escape back to the list. */
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    const { episode } = read();
    const found = [...fold(select(read())).keys()];
    const at = episode ? placeOf(found, episode) : -1;
    if (event.key === "/") search.focus();
    else if (event.key === "Escape" && episode) go({ episode: "" });
    else if (event.key === "j" && at + 1 < found.length) open(found[at + 1]);
    else if (event.key === "k" && at > 0) open(found[at - 1]);
    else return;
    event.preventDefault();
  });
  addEventListener("hashchange", render);
  render();
  return open;
}

const browser = document.getElementById("browser");
const openEpisode = browser ? browse(browser) : null;
