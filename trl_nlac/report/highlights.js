const MOST_EARLIER = 3; // turns before the last one of an episode that a card tells

/** Create the card of a highlight: the situation, and what critic, target and refinement made of it. */
function highlightCard({ title, why, episode: index, turn: number, sample: chosen, about }, open) {
  const episode = data.episodes[index];
  const turn = episode.turns[number];
  const before = episode.turns[number - 1];
  const observation =
    turn.observation ??
    (number === 0 ? episode.prompt : before.number === turn.number - 1 ? before.next_observation : undefined);
  const sample = chosen === null ? undefined : turn.samples[chosen];
  const part = (label, text, kind, ...notes) =>
    text === undefined
      ? null
      : el(
          "div",
          {},
          el("div", { className: "label" }, label, ...notes.filter(Boolean)),
          kind === "refined" ? refinedBlock(text, sample?.attempt, "") : textBlock(text, "", kind),
        );
  const reward = turn.reward ? [chip(`reward ${format(turn.reward)}`, turn.reward > 0 ? "yes" : "no")] : [];
  const judged = sample ?? turn;
  const isShort = chosen === null && number > 0 && number <= MOST_EARLIER;
  const earlier = (isShort ? episode.turns.slice(0, number) : []).flatMap((told) => [
    part("Action", told.action, "action"),
    part("What happened", told.next_observation, ""),
  ]);
  const played = [
    part("Action", turn.action, "action"),
    part("What happened", turn.next_observation, "", ...reward),
    part("Critique", judged.critique, "critique", ...verdictChips(judged.verdict, judged.verdict_score, judged.wrong)),
    part("Bellman target", sample?.target, "target", ...verdictChips(sample?.target_verdict)),
  ];
  const refinement = [
    part("Fresh action in the same state", sample?.attempt, "action"),
    part("Its critique", sample?.attempt_critique, "critique", ...verdictChips(sample?.attempt_verdict)),
    part("Refined action", sample?.refined_action, "refined"),
  ];
  const button = el("button", { type: "button", className: "quiet" }, "Open the whole episode");
  button.addEventListener("click", () => open(index));
  return el(
    "article",
    { className: "highlight" },
    el("h3", {}, title),
    el("p", { className: "note" }, why),
    part("Observation", isShort ? episode.prompt : observation, "short"),
    ...earlier,
    ...(about === "refinement"
      ? refinement
      : [...played, ...(about === "critic" || !sample ? [] : refinement)]),
    button,
  );
}

const MOST_TIMES = 24;

/** Create a table of the same tasks in all evaluations of a dataset: a row for each task, a column for each step. */
function tasksOverTime(dataset, tasks, open) {
  const steps = [...new Set(Object.values(tasks).flatMap((times) => Object.keys(times).map(Number)))];
  steps.sort((a, b) => a - b);
  if (steps.length < 2) return null;
  const size = Math.ceil(steps.length / MOST_TIMES);
  const columns = steps.filter((_, i) => (steps.length - 1 - i) % size === 0);
  const shown = new Map(); // the last episode of the page by task and step
  const titles = new Map();
  data.episodes.forEach((episode, i) => {
    if (episode.split !== "eval" || (episode.dataset ?? "") !== dataset) return;
    shown.set(`${episode.number} ${episode.step}`, i);
    titles.set(String(episode.number), titleOf(episode));
  });
  const cell = (number, step, counts) => {
    if (!counts) return el("td", {});
    const [won, played] = counts;
    const kind = won === played ? "success" : won ? "some" : "failure";
    const label = `Task ${number}, step ${format(step)}: ${won} of ${played} succeeded`;
    const text = played === 1 ? OUTCOMES[kind][0] : `${won}/${played}`;
    const index = shown.get(`${number} ${step}`);
    const properties = { type: "button", className: `outcome ${kind}`, title: label, "aria-label": label };
    const node = el("button", properties, text);
    node.disabled = index === undefined;
    node.addEventListener("click", () => open(index));
    return el("td", {}, node);
  };
  const rows = Object.entries(tasks).map(([number, times]) =>
    el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el("span", { className: "number" }, `${number} `),
        el("bdi", {}, titles.get(number) ?? ""),
      ),
      ...columns.map((step) => cell(number, step, times[step])),
    ),
  );
  const head = el("tr", {}, el("th", {}, "task"), ...columns.map((step) => el("th", { scope: "col" }, short(step))));
  return el(
    "div",
    {},
    dataset ? el("h3", { dir: "auto" }, dataset) : null,
    el(
      "div",
      { className: "wide-table", tabIndex: 0, role: "region", "aria-label": "Tasks over time" },
      el("table", { className: "grid-of-tasks" }, el("thead", {}, head), ...rows),
    ),
  );
}

const cards = document.getElementById("cards");
if (cards) cards.append(...data.highlights.map((highlight) => highlightCard(highlight, openEpisode)));

const times = document.getElementById("times");
if (times) {
  const tables = Object.entries(data.tasks).map(([dataset, tasks]) => tasksOverTime(dataset, tasks, openEpisode));
  times.append(...tables.filter(Boolean));
}
