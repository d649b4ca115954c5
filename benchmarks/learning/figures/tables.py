# SPDX-License-Identifier: Apache-2.0

"""The tables of the result pages, from the cells alone."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from math import prod
from statistics import mean

from benchmarks import reporting
from benchmarks.learning.figures.curves import (
    area,
    decoded_success,
    difference,
    final_success,
    holm,
    of_cells,
    permutation_p,
    reach,
    spent,
    success_at,
    training_success,
    verdict_accuracy,
)
from benchmarks.learning.guess_the_number import REFERENCES
from benchmarks.learning.methods.settings import SELF_DISTILLATION, TRAINERS
from benchmarks.learning.tasks import GUESS_THE_NUMBER, RELAY_DESK, RELAY_PIECES, TASKS
from trl_nlac import NLACConfig


LABELS = {
    "nlac": "NLAC",
    "hindsight": "Hindsight",
    "grpo": "GRPO",
    "rft": "RFT",
    "scalar": "Scalar critic",
    "base": "Base model",
    "rft_unanchored_long": "RFT (unanchored, long)",
    "scalar_five": "Scalar critic (five times the steps)",
    "self_distillation": "Self-distillation",
    "self_distillation_reverse": "Self-distillation (reverse)",
    "taught": "Taught",
}
Run = tuple[str, str, str]  # set, task and method
METHODS = ("nlac", "hindsight", "grpo", "rft", "scalar", "base", "base_refined", "base_remembering")
PLAIN = "nlac_plain"  # NLAC with half of the steps, as its ablations
FRUGAL = "nlac_frugal"
TWENTY_TIMES = ("rft_long", "grpo_long")
REPLAYING = ("nlac", "hindsight", SELF_DISTILLATION)
LEVEL = 0.8  # of the oracle's success
# Sets of the appendix, with their titles; those of the search are one.
SETS = {
    "table": "The table",
    "default": "The default configuration",
    "relay": "The relay desk",
    "replay": "Equal replay",
    "again": "The table, run again: minus the table",
    "baselines": "Stronger baselines",
    "sharpening": "Other temperatures, and sharper learning",
    "bases": "Other base models: minus hindsight",
    "savings": "What saves tokens",
    "extraction": "From critiques to a policy",
    "staleness": "Episodes of older weights: minus without",
    "endurance": "Ten times as long",
    "game": "A game",
    "game_without_refusals": "The game, first base model",
    "mastermind": "Mastermind",
    "mastermind_larger": "Mastermind, larger",
    "generalisation": "Desks with handbooks, tiny model",
    "counted": "Costs that the table does not count: minus the table",
    "search": "Search for settings",
}
# Those whose settings are changes of `NLACConfig()`, and those that compare draws of the buffer for each step.
OF_DEFAULT = ("default", "relay", "replay")
DRAWS = ("2 draws", "8 draws", "32 draws")
# Where NLAC's figures are taken from, the closest in code first.
OF_NLAC = ("sharpening", "table")
# What each method can reach at the relay desk, see `learning/relay_desk.py`.
CEILINGS = {
    (RELAY_DESK, "nlac"): 1.0,
    (RELAY_PIECES, "nlac"): 0.25,
    **{(RELAY_DESK, method): 0.25 for method in ("hindsight", SELF_DISTILLATION, "base_remembering")},
    **{(RELAY_DESK, method): 0.0 for method in ("scalar", "rft", "grpo")},
}


def label(method: str) -> str:
    """Return the name of a method."""
    if method in LABELS:
        return LABELS[method]
    kind, _, setting = method.partition("_")
    return f"{LABELS[kind]} ({setting.replace('_', ' ')})"


def task_label(task: str) -> str:
    """Return the name of a task."""
    name, _, kind = task.partition("desk_")
    return f"Service desk ({kind})" if kind else name.replace("_", " ").capitalize()


def number(value: float | None) -> str:
    """Format a cost."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: dict | None) -> str:
    """Format a mean success with its interval, cut at 0 and 1."""
    return "–" if value is None else reporting.interval(value)


def gap(value: dict | None) -> str:
    """Format a mean difference with its interval."""
    if value is None or value["low"] is None:
        return "–" if value is None else f"{value['mean']:+.2f}"
    return f"{value['mean']:+.2f} ({value['low']:+.2f} to {value['high']:+.2f})"


def each(cells: list[dict]) -> str:
    """Format the final success of every seed."""
    return ", ".join(f"{final_success(cell):.2f}" for cell in cells)


def draws(cells: list[dict]) -> float | None:
    """Return how many transitions were drawn from the replay buffer for each environment step."""
    kind, settings = cells[0]["set"].split("/")[0], cells[0]["settings"]
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps")
    is_known = kind in OF_DEFAULT and cells[0]["method"] not in (*TRAINERS, "base", "base_refined")
    if not is_known and not settings.keys() >= {"samples_per_iteration", *sizes}:
        return None  # it has no buffer, or does not say how much it drew
    batch = prod(settings.get(size, NLACConfig.__dataclass_fields__[size].default) for size in sizes)
    return mean(batch * spent(cell, "gradient_steps") / spent(cell, "environment_steps") for cell in cells)


def mean_cost(cells: list[dict], cost: str) -> float | None:
    """Return a mean cost, or `None` if a cell does not count it."""
    values = [spent(cell, cost) for cell in cells]
    return None if None in values else mean(values)


class Tables:
    """All tables of the learning benchmark, from its cells and those of the pretrained model."""

    def __init__(self, cells: list[dict], real: Sequence[dict] = ()):
        self.runs: dict[Run, list[dict]] = {}
        for cell in sorted(cells, key=lambda cell: cell["seed"]):
            self.runs.setdefault((cell["set"], cell["task"], cell["method"]), []).append(cell)
        self.real = real

    def of(self, task: str, method: str, *sets: str) -> list[dict]:
        """Return the cells of a method on a task in the first of the sets that has some."""
        return next((self.runs[s, task, method] for s in sets if (s, task, method) in self.runs), [])

    def reference(self, run: Run) -> list[dict]:
        """Return the cells that those of a row are compared with."""
        kind, task, method = run
        if kind in ("again", "counted"):
            return self.of(task, method, "table")
        if kind.startswith("bases"):
            return self.of(task, "hindsight", kind) if method == "nlac" else []
        if kind == "staleness":
            return self.of(task, FRUGAL, kind, "savings") if method != FRUGAL else []
        if kind.startswith("search") or method == "nlac":
            return []
        if method.startswith("nlac_") and (kind, task, PLAIN) in self.runs:
            return self.runs[kind, task, PLAIN] if method != PLAIN else []
        return self.of(task, "nlac", kind, *(("table",) if kind in ("baselines", "savings") else OF_NLAC))

    @cached_property
    def differences(self) -> dict[tuple[Run, str], dict | None]:
        """Differences of every row to its reference, paired by seed, by what is compared."""
        found = {}
        for run, cells in self.runs.items():
            plain = self.reference(run)
            if not plain:
                continue
            ends = [max(spent(cell, "environment_steps") for cell in of) for of in (cells, plain)]
            common = min(end for end in ends if end) if any(ends) else 1
            values: dict[str, Callable[[dict], float | None]] = {
                "success": final_success,
                "greedy": lambda cell: decoded_success(cell, 0),
                "area": lambda cell, common=common: area(cell, common),
            }
            for name, value in values.items():
                found[run, name] = difference(of_cells(cells, value), of_cells(plain, value))
        return found

    @cached_property
    def corrected(self) -> dict[tuple[Run, str], float]:
        """P-values of these, corrected for their number."""
        return holm(self.differences)

    def compared(self, run: Run, name: str) -> str:
        """Format a difference: `*` if its interval leaves out 0, `**` if it does after the correction, too."""
        value = self.differences.get((run, name))
        clear = value and value["low"] is not None and not value["low"] <= 0 <= value["high"]
        stars = "**" if self.corrected.get((run, name), 1) < 0.05 else "*" if clear else ""
        return f"{gap(value)} {stars}".rstrip()

    def row(self, run: Run, cells: list[dict]) -> dict[str, str]:
        """Return every figure of a method on a task in a set."""
        (kind, task, method), reached = run, reach(cells, LEVEL)
        steps, replay = reached["environment_steps"], draws(cells)
        return {
            "task": task_label(task),
            "method": " ".join([label(method), *(f"[{part}]" for part in kind.split("/")[1:])]),
            "seeds": str(len(cells)),
            "steps": number(mean_cost(cells, "environment_steps")),
            "draws a step": "–" if replay is None else f"{replay:.1f}",
            "success": rate(of_cells(cells, final_success)),
            "difference": self.compared(run, "success"),
            "greedy": rate(of_cells(cells, lambda cell: decoded_success(cell, 0))),
            "greedy, difference": self.compared(run, "greedy"),
            "area, difference": self.compared(run, "area"),
            "on training tasks": rate(of_cells(cells, training_success)),
            f"steps to {LEVEL}": f"{number(steps)} ({reached['num_seeds']} of {len(cells)})",
            "tokens to it": number(reached["generated_tokens"]),
            "gradient steps": number(mean_cost(cells, "gradient_steps")),
            "generated": number(mean_cost(cells, "generated_tokens")),
            "read": number(mean_cost(cells, "prefilled_tokens")),
            "trained": number(mean_cost(cells, "trained_tokens")),
            "seconds": number(mean_cost(cells, "seconds")),
        }

    def methods(self, runs: dict[Run, list[dict]]) -> str:
        """Format rows, with all columns that say something."""
        rows = [self.row(run, cells) for run, cells in runs.items()]
        chosen = [name for name in rows[0] if any(row[name] != "–" for row in rows)]
        return reporting.table(chosen, [[row[name] for name in chosen] for row in rows])

    def of_set(self, kind: str) -> str:
        """Format all cells of a set of the appendix."""
        order = [*TASKS, *dict.fromkeys(task for _, task, _ in self.runs)]
        runs = {run: cells for run, cells in self.runs.items() if run[0].split("/")[0] == kind}
        return self.methods(dict(sorted(runs.items(), key=lambda item: (order.index(item[0][1]), item[0][0]))))

    def screen(self) -> str:
        """Format the means of the main table: how far each method is after NLAC's steps, and after several times."""

        def share(task: str, method: str, *sets: str, at: float | None = None) -> str:
            cells = self.of(task, method, *sets)
            values = [final_success(c) if at is None else success_at(c, "environment_steps", at) for c in cells]
            return f"{mean(values):.2f}" if values else "–"

        rows = []
        for task in (*TASKS, GUESS_THE_NUMBER):
            kind = "game" if task == GUESS_THE_NUMBER else "table"
            steps = mean_cost(self.of(task, "nlac", kind), "environment_steps")
            row = [f"{task_label(task)}, N = {number(round(steps, -2))}", share(task, "nlac", "default")]
            row.append(share(task, "nlac", kind))
            row.append(share(task, "hindsight", kind))
            for method in ("rft", "grpo"):
                parts = [share(task, method, kind, at=steps), share(task, method, kind)]
                row.append(" / ".join([*parts, share(task, f"{method}_long", "baselines")]))
            learned = [share(task, SELF_DISTILLATION, "baselines", kind, at=at) for at in (steps, None)]
            row += [" / ".join(learned), share(task, "scalar", kind), share(task, "base_remembering", kind)]
            rows.append([*row, share(task, "base_refined", kind)])
        names = ["task (N)", "NLAC", "NLAC, rehearsed", "hindsight", "RFT, N / 5 N / 20 N", "GRPO, N / 5 N / 20 N"]
        names += ["self-distillation, N / 5 N", "scalar critic", "base model with memory", "base model, refined"]
        return reporting.table(names, rows)

    def default(self) -> str:
        """Format what the default configuration reaches and costs, beside the rehearsed settings of the main table."""
        rows = []
        for task in TASKS:
            for kind, words in (("default", "default"), ("table", "rehearsed")):
                run = kind, task, "nlac"
                if run in self.runs:
                    cells = self.runs[run]
                    each = {"NLAC": words, "worst": f"{min(map(final_success, cells)):.2f}"}
                    for cost in ("generated", "trained"):
                        total = mean_cost(cells, f"{cost}_tokens")
                        mean_step = None if total is None else total / mean_cost(cells, "environment_steps")
                        each[f"{cost} tokens a step"] = number(mean_step)
                    rows.append({**self.row(run, cells), **each})
        names = ["task", "NLAC", "seeds", "success", "worst", f"steps to {LEVEL}", "draws a step"]
        names += ["generated tokens a step", "trained tokens a step", "gradient steps", "seconds"]
        return reporting.table(names, [[row[name] for name in names] for row in rows])

    def twenty_times(self) -> str:
        """Format how all runs of NLAC compare with those that had twenty times its environment steps."""
        rows = []
        for task in TASKS[:-1]:
            sets = ("table", "again", "sharpening")
            ours = [final_success(cell) for s in sets for cell in self.of(task, "nlac", s)]
            for method in TWENTY_TIMES:
                theirs = [final_success(cell) for cell in self.of(task, method, "baselines")]
                parts = [f"{min(ours):.2f} of {len(ours)} runs", f"{max(theirs):.2f} of {len(theirs)}"]
                rows.append([task_label(task), label(method), *parts, f"{permutation_p(ours, theirs):.4f}"])
        return reporting.table(["task", "method", "NLAC's lowest", "its highest", "permutation p"], rows)

    def critic(self) -> str:
        """Format how right the critic of NLAC is before, halfway and after training."""
        runs = {run: cells for run, cells in self.runs.items() if run[0] in ("table", "game") and run[2] == "nlac"}
        values: dict[str, Callable[[dict], float | None]] = {
            "future is right": lambda point: point.get("oracle/future_accuracy"),
            "verdict is right (0.5: constant)": verdict_accuracy,
            "refined action is better": lambda point: point.get("oracle/refined_better_rate"),
        }
        rows = []
        for (_, task, method), cells in runs.items():
            curves = [cell["points"] for cell in cells]
            stages = [[points[at] for points in curves] for at in (0, min(map(len, curves)) // 2, -1)]
            shown = [" → ".join(f"{mean(map(value, points)):.2f}" for points in stages) for value in values.values()]
            rows.append([task_label(task), label(method), *shown])
        return reporting.table(["task", "method", *values], rows)

    def front(self) -> str:
        """Format success after equal environment steps and equal replay, with generated tokens for each step."""
        said = {
            "service_desk_told": "the remedy",
            "service_desk_hinted": "which argument is wrong",
            "service_desk_noisy": "a remedy, often a wrong one",
            "service_desk_delayed": "what is wrong, a step later (0.60 possible)",
            "rooms": "little",
            RELAY_DESK: "little; no episode spans the task",
        }

        def shown(task: str, method: str) -> str:
            if method not in REPLAYING:
                cells = self.of(task, method, "relay") or self.of_rewards(task, f"{method}_long")
                return f"{mean(map(final_success, cells)):.2f}"
            cells = self.of(task, method, "relay") or self.of_replay(task, method, DRAWS[-1])
            tokens = mean_cost(cells, "generated_tokens") / mean_cost(cells, "environment_steps")
            found = [of_cells(cells, of) for of in (final_success, lambda cell: decoded_success(cell, 0))]
            sampled_and_greedy = " / ".join(f"{value['mean']:.2f}" for value in found if value)
            return f"{sampled_and_greedy} ({number(tokens)})"

        rows = [
            [says, *(shown(task, method) for method in REPLAYING), f"{shown(task, 'rft')} / {shown(task, 'grpo')}"]
            for task, says in said.items()
        ]
        return reporting.table(["a failure says", *map(label, REPLAYING), "RFT / GRPO"], rows)

    def handbook(self) -> str:
        """Format the cells of the pretrained model, where held-out tasks are desks that were never seen."""
        of_real = Tables([{**cell, "set": "table"} for cell in self.real])
        return of_real.methods(of_real.runs)

    def references(self) -> str:
        """Format the success of players of the game that need no training."""
        return reporting.table(["player", "success"], [[name, f"{of:.2f}"] for name, of in REFERENCES.items()])

    def of_replay(self, task: str, method: str, amount: str) -> list[dict]:
        """Return the cells of a method with an amount of draws, by seeds that all methods have."""
        runs = [self.runs.get((f"replay/{amount}", task, name), []) for name in REPLAYING]
        seeds = set.intersection(*({cell["seed"] for cell in cells} for cells in runs))
        return [cell for cell in runs[REPLAYING.index(method)] if cell["seed"] in seeds]

    def of_rewards(self, task: str, method: str) -> list[dict]:
        """Return the cells of a method that reads rewards alone with the most steps that it had."""
        return self.of(task, method, "replay", "baselines") or self.of(task, method.removesuffix("_long"), "table")

    def equal_replay(self) -> str:
        """Format what methods reach with equal steps and equal draws of the buffer, and what that costs."""
        rows = []
        for task in TASKS:
            runs = [(method, self.of_replay(task, method, amount)) for method, amount in product(REPLAYING, DRAWS)]
            for method, cells in [*runs, *((name, self.of(task, name, "replay")) for name in TWENTY_TIMES)]:
                if cells:
                    row = self.row((cells[0]["set"], task, method), cells)
                    rows.append({**row, "method": label(method), "each": each(cells)})
        names = ["task", "method", "draws a step", "each", "greedy", f"steps to {LEVEL}", "gradient steps"]
        names += ["generated", "trained", "seconds"]
        return reporting.table(names, [[row[name] for name in names] for row in rows])

    def replay(self) -> str:
        """Format the means of that table, for the amounts of draws of which there are cells."""
        found = {a: [[self.of_replay(task, method, a) for method in REPLAYING] for task in TASKS] for a in DRAWS}
        found = {amount: cells for amount, cells in found.items() if any(map(any, cells))}
        rows = []
        for i, task in enumerate(TASKS):
            row = [task_label(task)]
            for j in range(len(REPLAYING)):
                means = [mean(map(final_success, of[i][j])) if of[i][j] else None for of in found.values()]
                row.append(" / ".join("–" if value is None else f"{value:.2f}" for value in means))
            rewards = [self.of_rewards(task, method) for method in TWENTY_TIMES]
            rows.append([*row, *(f"{mean(map(final_success, cells)):.2f}" for cells in rewards)])
        drawn = " / ".join(amount.removesuffix(" draws") for amount in found)
        names = ["task", *(f"{label(method)}, {drawn} draws" for method in REPLAYING), "RFT, 20 N", "GRPO, 20 N"]
        return reporting.table(names, rows)

    def relay(self) -> str:
        """Format what every method reaches at the relay desk, beside what it can reach."""
        rows = []
        for (task, method), ceiling in CEILINGS.items():
            cells = self.of(task, method, "relay")
            if cells:
                row = self.row(("relay", task, method), cells)
                rows.append({**row, "ceiling": f"{ceiling:.2f}", "each": each(cells)})
        names = ["task", "method", "ceiling", "success", "each", "greedy", "steps", f"steps to {LEVEL}"]
        names += ["gradient steps", "generated", "trained", "seconds"]
        return reporting.table(names, [[row[name] for name in names] for row in rows])

    def appendix(self) -> str:
        """Format every set of cells."""
        kinds = [kind for kind in SETS if any(run[0].split("/")[0] == kind for run in self.runs)]
        return "\n\n".join(f"### {SETS[kind]}\n\nSet: {kind}\n\n{self.of_set(kind)}" for kind in kinds)
