/** Create the card of a highlight: the situation, and what critic, target and refinement made of it. */
function highlightCard({ title, why, episode: index, turn: number, sample: chosen }, open) {
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
      : el("div", {}, el("div", { className: "label" }, label, ...notes.filter(Boolean)), textBlock(text, "", kind));
  const reward = turn.reward ? [chip(`reward ${format(turn.reward)}`, turn.reward > 0 ? "yes" : "no")] : [];
  const judged = sample ?? turn;
  const button = el("button", { type: "button", className: "quiet" }, "Open the whole episode");
  button.addEventListener("click", () => open(index));
  return el(
    "article",
    { className: "highlight" },
    el("h3", {}, title),
    el("p", { className: "note" }, why),
    part("Observation", observation, "short"),
    part("Action", turn.action, "action"),
    part("What happened", turn.next_observation, "", ...reward),
    part("Critique", judged.critique, "critique", ...verdictChips(judged.verdict, judged.verdict_score, judged.wrong)),
    part("Bellman target", sample?.target, "", ...verdictChips(sample?.target_verdict)),
    part("First attempt", sample?.attempt, "action"),
    part("Its critique", sample?.attempt_critique, "critique", ...verdictChips(sample?.attempt_verdict)),
    part("Refined action", sample?.refined_action, "action"),
    button,
  );
}

const MOST = { tasks: 30, times: 24 };

/** Create a table of the same tasks in all evaluations of a dataset: a row for each task, a column for each step. */
function tasksOverTime(dataset, episodes, open) {
  const steps = [...new Set(episodes.map(([episode]) => episode.step))].sort((a, b) => a - b);
  const size = Math.ceil(steps.length / MOST.times);
  const columns = steps.filter((_, i) => (steps.length - 1 - i) % size === 0);
  const tasks = new Map();
  for (const [episode, i] of episodes) {
    if (!tasks.has(episode.number)) tasks.set(episode.number, new Map());
    const times = tasks.get(episode.number);
    times.set(episode.step, [...(times.get(episode.step) ?? []), [episode, i]]);
  }
  const rows = [...tasks].filter(([, times]) => times.size > 1).sort(([a], [b]) => a - b);
  if (!rows.length) return null;
  const cell = (found, step, title) => {
    if (!found) return el("td", {});
    const won = found.filter(([episode]) => episode.outcome === "success").length;
    const [sign] = OUTCOMES[found.length === 1 ? found[0][0].outcome : won ? "success" : "failure"];
    const words = found.length === 1 ? OUTCOMES[found[0][0].outcome][1] : `${won} of ${found.length} succeeded`;
    const kind = found.length === 1 ? found[0][0].outcome : won === found.length ? "success" : won ? "some" : "failure";
    const label = `${title}, step ${format(step)}: ${words}`;
    const text = found.length === 1 ? sign : `${won}/${found.length}`;
    const node = el("button", { type: "button", className: `outcome ${kind}`, title: label, "aria-label": label }, text);
    node.addEventListener("click", () => open(found.at(-1)[1]));
    return el("td", {}, node);
  };
  const line = ([number, times]) => {
    const title = titleOf([...times.values()][0][0][0]);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { className: "number" }, `${number} `), el("bdi", {}, title)),
      ...columns.map((step) => cell(times.get(step), step, `Task ${number}`)),
    );
  };
  const head = el("tr", {}, el("th", {}, "task"), ...columns.map((step) => el("th", { scope: "col" }, short(step))));
  const left = rows.length - MOST.tasks;
  return el(
    "div",
    {},
    dataset ? el("h3", { dir: "auto" }, dataset) : null,
    el(
      "div",
      { className: "wide-table", tabIndex: 0, role: "region", "aria-label": "Tasks over time" },
      el("table", { className: "grid-of-tasks" }, el("thead", {}, head), ...rows.slice(0, MOST.tasks).map(line)),
    ),
    left > 0 ? el("p", { className: "note" }, `${format(left)} more tasks are not shown.`) : null,
  );
}

const highlights = document.getElementById("highlights");
if (highlights) highlights.append(...data.highlights.map((highlight) => highlightCard(highlight, openEpisode)));

const times = document.getElementById("times");
if (times) {
  const evaluations = new Map();
  data.episodes.forEach((episode, i) => {
    if (episode.split !== "eval") return;
    const dataset = episode.dataset ?? "";
    evaluations.set(dataset, [...(evaluations.get(dataset) ?? []), [episode, i]]);
  });
  const tables = [...evaluations].map(([name, episodes]) => tasksOverTime(name, episodes, openEpisode)).filter(Boolean);
  if (tables.length) times.append(...tables);
  else times.closest("section").remove();
}
