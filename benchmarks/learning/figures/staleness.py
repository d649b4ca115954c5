# SPDX-License-Identifier: Apache-2.0

"""
Whether the learning curve suffers when episodes are played beside training, with weights that are some optimizer steps
old: NLAC with the frugal settings against the same without staleness.

python -m benchmarks.learning.figures.staleness --json benchmarks/results/learning_staleness.json \\
    --page docs/source/vllm_integration.md

The cells, which play with `AsyncRollouts` and a copy of the model in place of a server:

python -m benchmarks.learning.run --tasks service_desk_told rooms --seeds 0 1 2 \\
    --methods nlac_frugal nlac_stale_1 nlac_stale_4 nlac_stale_16 --cells benchmarks/results/learning_staleness
"""

import argparse
from pathlib import Path

from benchmarks import reporting
from benchmarks.learning.figures.seeds import difference, of_cells
from benchmarks.learning.figures.summary import LEVELS, RESULTS, area, final_success, latest, reach
from benchmarks.learning.figures.table import gap, number, rate, task_label
from benchmarks.learning.methods.settings import FRUGAL, STALE


FOLDERS = (RESULTS / "learning_savings", RESULTS / "learning_staleness")
STALENESS = {FRUGAL: 0, **{name: settings["staleness"] for name, settings in STALE.items()}}
LEVEL = max(LEVELS)


def figures(cells: list[dict]) -> dict:
    """
    Return the figures of one staleness on a task. `area` is the mean success up to the budget, the area under the
    learning curve.
    """
    return {
        "staleness": STALENESS[cells[0]["method"]],
        "final": of_cells(cells, final_success),
        "area": of_cells(cells, lambda cell: area(cell, cell["budget"])),
        "reach": reach(cells, LEVEL * cells[0]["oracle_success"]),
    }


def staleness(cells: list[dict]) -> dict:
    """Return the figures of every staleness, and their differences to none, paired by seed."""
    tasks: dict[str, dict[str, dict]] = {}
    for task in dict.fromkeys(cell["task"] for cell in cells):
        of_task = sorted((cell for cell in cells if cell["task"] == task), key=lambda cell: cell["seed"])
        arms = {name: [cell for cell in of_task if cell["method"] == name] for name in STALENESS}
        tasks[task] = {name: figures(found) for name, found in arms.items() if found}
        for name, arm in tasks[task].items():
            if name != FRUGAL and FRUGAL in tasks[task]:
                plain = tasks[task][FRUGAL]
                arm["differences"] = {key: difference(arm[key], plain[key]) for key in ("final", "area")}
    return {"level": LEVEL, "tasks": tasks, "machines": reporting.machines(cells)}


def table(report: dict) -> str:
    """Format the figures as a table."""
    lines = [
        f"| task | staleness | seeds | final success | mean success | its difference | steps to {report['level']} |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, arms in report["tasks"].items():
        for arm in arms.values():
            compared = arm.get("differences", {}).get("area")
            parts = [
                *(task_label(task), str(arm["staleness"]), str(len(arm["final"]["seeds"]))),
                *(rate(arm["final"]), rate(arm["area"]), gap(compared)),
                number(arm["reach"]["environment_steps"]),
            ]
            lines.append("| " + " | ".join(parts) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, nargs="+", default=FOLDERS, help="folders of cells; a later one counts")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced by the table")
    args = parser.parse_args()
    found = [cell for cell in latest(reporting.read_cells(*args.cells)) if cell["method"] in STALENESS]
    stale = {cell["task"] for cell in found if cell["method"] in STALE}
    report = staleness([cell for cell in found if cell["task"] in stale])
    reporting.publish(report, table(report), "learning/figures/staleness.py", args.json, args.page)


if __name__ == "__main__":
    main()
