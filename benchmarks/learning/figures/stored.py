# SPDX-License-Identifier: Apache-2.0

"""
Whether NLAC is ahead of hindsight because of what its critic knows or because it refines fresh actions: hindsight can
only refine stored actions, and NLAC does so here, too, after their Bellman targets.

python -m benchmarks.learning.figures.stored --json benchmarks/results/learning_stored.json \\
    --page docs/source/results_temperature.md

Of NLAC and hindsight the latest cells with the settings of the main table count, which are closest in code. The cells
of the third method:

python -m benchmarks.learning.run --seeds 0 1 2 --methods nlac_stored_actions \\
    --tasks service_desk_told service_desk_hinted service_desk_noisy service_desk_delayed \\
    --cells benchmarks/results/learning_savings
"""

from benchmarks import reporting
from benchmarks.learning.figures.seeds import difference, of_cells
from benchmarks.learning.figures.summary import CELLS, COUNTED, RESULTS, latest, mean_costs, measured
from benchmarks.learning.figures.table import cost_table, gap, label, rate, task_label


FOLDERS = (CELLS, *COUNTED, RESULTS / "learning_savings")
STORED = "nlac_stored_actions"
METHODS = ("nlac", STORED, "hindsight")


def stored(cells: list[dict]) -> dict:
    """
    Return the final success of the methods on each task where `STORED` was run, with its seeds, and differences. Of
    two cells of the same run the later one counts.
    """
    tasks, cells = {}, latest(cells)
    for task in sorted({cell["task"] for cell in cells if cell["method"] == STORED}):
        seeds = {cell["seed"] for cell in cells if (cell["task"], cell["method"]) == (task, STORED)}
        of_task = {
            method: [c for c in cells if (c["task"], c["method"]) == (task, method) and c["seed"] in seeds]
            for method in METHODS
        }
        success = {
            method: of_cells(found, lambda cell: measured(cell["final"]["held_out"], "success"))
            for method, found in of_task.items()
        }
        tasks[task] = {
            "success": success,
            "minus": {rival: difference(success[STORED], success[rival]) for rival in ("nlac", "hindsight")},
            "costs": {method: mean_costs(found) for method, found in of_task.items()},
        }
    return {"tasks": tasks, "machines": reporting.machines(cells)}


def text(report: dict) -> str:
    """Write the tables."""
    names = ["task", "seeds", *map(label, METHODS), "stored minus NLAC", "stored minus hindsight"]
    rows = [
        [
            *(task_label(name), str(len(task["success"][STORED]["seeds"]))),
            *map(rate, task["success"].values()),
            *map(gap, task["minus"].values()),
        ]
        for name, task in report["tasks"].items()
    ]
    parts = [reporting.table(names, rows), "", "Mean costs of training:"]
    for name, task in report["tasks"].items():
        costs = {label(method): of for method, of in task["costs"].items()}
        parts += ["", f"{task_label(name)}:", "", cost_table(costs)]
    return "\n".join(parts)


def main():
    reporting.publish_cells(__doc__, FOLDERS, stored, text, "learning/figures/stored.py")


if __name__ == "__main__":
    main()
