# SPDX-License-Identifier: Apache-2.0


"""
Whether the code as it is gives the table of the learning benchmark again: its cells beside newer runs of the same
settings, desks and random seeds.

python -m benchmarks.learning.figures.again --json benchmarks/results/learning_again.json \\
    --page docs/source/results_again.md

The newer cells lie in a folder of their own:

python -m benchmarks.learning.run --tasks service_desk_told --methods nlac hindsight \\
    --cells benchmarks/results/learning_again
"""

from benchmarks import reporting
from benchmarks.learning.figures.seeds import LEAST_SEEDS, difference, of_cells
from benchmarks.learning.figures.summary import (
    AGAIN,
    CELLS,
    METHODS,
    final_success,
    have_same_settings,
    mean_costs,
    measured,
    reach,
)
from benchmarks.learning.figures.table import cost_table, gap, label, number, rate, task_label
from benchmarks.learning.tasks import TASKS


HALF = 0.5  # of the oracle's success
STANDS, TOO_FEW = "stands", "too few seeds"


def path_of(cell: dict) -> list[tuple]:
    """Return what a run did, evaluation by evaluation. Two runs with the same path took the same actions."""
    return [
        (point["environment_steps"], point["gradient_steps"], point["generated_tokens"], measured(point, "success"))
        for point in cell["points"]
    ]


def again(cells: list[dict], published: list[dict]) -> dict:
    """Return the figures of newer cells beside those of the same seeds in the table."""
    old = {(cell["task"], cell["method"], cell["seed"]): cell for cell in published}
    tasks: dict[str, dict] = {}
    for task in TASKS:
        of_task = sorted((cell for cell in cells if cell["task"] == task), key=lambda cell: cell["seed"])
        names = {cell["method"] for cell in of_task}
        methods = [*(name for name in METHODS if name in names), *sorted(names - set(METHODS))]
        if methods:
            tasks[task] = {
                method: compare([cell for cell in of_task if cell["method"] == method], old) for method in methods
            }
    return {
        "tasks": tasks,
        "commits": sorted({cell["commit"] for cell in cells}),
        "machines": reporting.machines(cells),
    }


def compare(new: list[dict], published: dict[tuple[str, str, int], dict]) -> dict:
    """
    Compare runs of one method on one task with those of the same seeds in the table.

    Raises:
        ValueError: If a seed is not in the table, or had other settings there.
    """
    old = []
    for cell in new:
        name = (cell["task"], cell["method"], cell["seed"])
        if name not in published or not have_same_settings(cell, published[name]):
            raise ValueError(f"The table has no cell {name} with the settings of the new one. Run it without changes.")
        old.append(published[name])
    half = HALF * new[0]["oracle_success"]
    before, after = of_cells(old, final_success), of_cells(new, final_success)
    return {
        "old": before,
        "new": after,
        "difference": difference(after, before),
        "num_same": sum(path_of(ours) == path_of(theirs) for ours, theirs in zip(new, old, strict=True)),
        "half": {"old": reach(old, half), "new": reach(new, half)},
        "old_seconds": mean_costs(old)["seconds"],
        "costs": mean_costs(new),
    }


def verdict(row: dict) -> str:
    """Say whether a row of the table stands: whether the interval of the difference includes zero."""
    change = row["difference"]
    if len(change["seeds"]) < LEAST_SEEDS:
        return TOO_FEW
    if change["low"] <= 0 <= change["high"]:
        return STANDS
    return "higher now" if change["low"] > 0 else "lower now"


def text(report: dict) -> str:
    """Write the tables, and how many rows stand."""
    verdicts = [verdict(row) for task in report["tasks"].values() for row in task.values()]
    judged = [found for found in verdicts if found != TOO_FEW]
    parts = []
    for name, task in report["tasks"].items():
        rows = [
            [
                *(label(method), str(len(row["new"]["seeds"])), rate(row["old"]), rate(row["new"])),
                *(gap(row["difference"]), str(row["num_same"])),
                *(number(row["half"][when]["environment_steps"]) for when in ("old", "new")),
                verdict(row),
            ]
            for method, row in task.items()
        ]
        names = ["method", "seeds", "in the table", "again", "new minus old", "same runs"]
        names += ["steps to half, old", "new", "the row"]
        trained = {label(m): row["costs"] for m, row in task.items() if row["costs"]["environment_steps"]["mean"]}
        parts += [f"{task_label(name)}:", "", reporting.table(names, rows), "", "Mean costs of the new runs:", ""]
        parts += [cost_table(trained), ""] if trained else []
    commits = ", ".join(commit[:7] for commit in report["commits"])
    parts += [
        f"**{judged.count(STANDS)} of {len(judged)} rows with {LEAST_SEEDS} or more seeds stand.** If nothing had",
        "changed, one in twenty would still be expected to differ. The same runs are those that took the same steps,",
        "sampled the same number of tokens and had the same success at every evaluation. The code of the new runs is",
        f"that of {commits}.",
    ]
    return "\n".join(parts)


def main():
    published = reporting.read_cells(CELLS)
    reporting.publish_cells(__doc__, [AGAIN], lambda cells: again(cells, published), text, "learning/figures/again.py")


if __name__ == "__main__":
    main()
