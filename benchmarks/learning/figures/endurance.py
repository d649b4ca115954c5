# SPDX-License-Identifier: Apache-2.0

"""
Whether success holds when NLAC trains ten times as long as in the main table, with rehearsal of samples from other
instances, of the initial model's own answers, and without rehearsal.

python -m benchmarks.learning.figures.endurance --json benchmarks/results/learning_endurance.json \\
    --page docs/source/results_endurance.md

The cells:

python -m benchmarks.learning.run --tasks service_desk_told rooms --seeds 0 1 2 \\
    --methods nlac_enduring nlac_enduring_self nlac_enduring_unrehearsed --cells benchmarks/results/learning_endurance
"""

from benchmarks import reporting
from benchmarks.learning.figures.seeds import LEAST_SEEDS, difference, of_cells
from benchmarks.learning.figures.summary import RESULTS, mean_costs, measured, point_at
from benchmarks.learning.figures.table import cost_table, gap, rate, task_label
from benchmarks.learning.methods.settings import ENDURING
from benchmarks.learning.run import BUDGETS


CELLS = RESULTS / "learning_endurance"
LABELS = {
    "nlac_enduring": "samples of other instances",
    "nlac_enduring_self": "the initial model's own answers",
    "nlac_enduring_unrehearsed": "none",
}
LOSS = 0.05
HOLDS, FALLS, UNJUDGED = "holds", "falls", f"not judged yet: it needs {LEAST_SEEDS} seeds"


def lowest_after(cell: dict, steps: int) -> float:
    """Return the lowest success after this number of environment steps."""
    return min(measured(point, "success") for point in cell["points"] if point["environment_steps"] > steps)


def figures(cells: list[dict]) -> dict:
    """
    Return the success of an arm on a task: in the last evaluation within the budget of the main table, at its highest,
    at its lowest after that evaluation, and at the end; what it gained or lost against the first two; and whether it
    holds: whether its mean at the end is less than `LOSS` below that within the budget.
    """
    budget = BUDGETS[cells[0]["task"]]
    success = {
        "at_budget": of_cells(cells, lambda cell: measured(point_at(cell, budget), "success")),
        "highest": of_cells(cells, lambda cell: max(measured(point, "success") for point in cell["points"])),
        "lowest_after": of_cells(cells, lambda cell: lowest_after(cell, budget)),
        "end": of_cells(cells, lambda cell: measured(cell["points"][-1], "success")),
    }
    change = difference(success["end"], success["at_budget"])
    judged = HOLDS if change["mean"] > -LOSS else FALLS
    return {
        **success,
        "change": change,
        "change_from_highest": difference(success["end"], success["highest"]),
        "verdict": judged if len(cells) >= LEAST_SEEDS else UNJUDGED,
        "costs": mean_costs(cells),
    }


def endurance(cells: list[dict]) -> dict:
    """Return the figures of every arm on every task."""
    tasks: dict[str, dict] = {}
    for task in dict.fromkeys(cell["task"] for cell in cells):
        for method in ENDURING:
            found = [cell for cell in cells if (cell["task"], cell["method"]) == (task, method)]
            if found:
                arms = tasks.setdefault(task, {})
                arms[method] = figures(sorted(found, key=lambda cell: cell["seed"]))
    return {"tasks": tasks, "machines": reporting.machines(cells)}


def text(report: dict) -> str:
    """Write the tables."""
    parts = []
    for task, arms in report["tasks"].items():
        rows = [
            [
                *(LABELS[name], str(len(arm["end"]["seeds"]))),
                *(rate(arm[when]) for when in ("at_budget", "highest", "lowest_after", "end")),
                *(gap(arm["change"]), gap(arm["change_from_highest"]), f"**{arm['verdict']}**"),
            ]
            for name, arm in arms.items()
        ]
        steps = BUDGETS[task]
        names = ["rehearsal", "seeds", f"last within {steps:,} steps", "highest", "lowest after that"]
        names += [f"after {10 * steps:,}", "change", "change from the highest", "success"]
        parts += [f"{task_label(task)}:", "", reporting.table(names, rows), ""]
        parts += ["Mean costs of training:", ""]
        parts += [cost_table({LABELS[name]: arm["costs"] for name, arm in arms.items()}), ""]
    return "\n".join(parts).rstrip()


def main():
    reporting.publish_cells(__doc__, [CELLS], endurance, text, "learning/figures/endurance.py")


if __name__ == "__main__":
    main()
