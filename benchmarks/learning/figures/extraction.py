# SPDX-License-Identifier: Apache-2.0

"""
Ways to get a policy from critiques: what each of them is worth on the desks, against NLAC as in the paper.

python -m benchmarks.learning.figures.extraction --json benchmarks/results/learning_extraction.json \\
    --page docs/source/results_extraction.md

The cells, and those of NLAC with the same code, in place of which the table's are taken where they are missing:

python -m benchmarks.learning.run --tasks service_desk_told service_desk_hinted service_desk_delayed --seeds 0 1 2 \\
    --methods nlac_policy_distill nlac_lean nlac_rehearsed_refinements nlac_verdict_weighted \\
    nlac_useful_critiques --cells benchmarks/results/learning_extraction
python -m benchmarks.learning.run --tasks service_desk_noisy --seeds 0 1 2 --methods nlac_lean \\
    --cells benchmarks/results/learning_extraction
python -m benchmarks.learning.run --tasks service_desk_told service_desk_hinted --seeds 0 1 2 --methods nlac \\
    --cells benchmarks/results/learning_counted

Self-distillation is that of `learning_baselines`, see baselines.py.
"""

from benchmarks import reporting
from benchmarks.learning.figures.baselines import REACH_NAMES, judged, reach_words
from benchmarks.learning.figures.correction import add_corrected
from benchmarks.learning.figures.costs import LEVEL
from benchmarks.learning.figures.seeds import difference, of_cells
from benchmarks.learning.figures.summary import CELLS, COUNTED, RESULTS, area, final_success, latest, mean_costs, reach
from benchmarks.learning.figures.table import cost_table, gap, label, rate, task_label
from benchmarks.learning.methods.settings import EXTRACTION, SELF_DISTILLATION


FOLDERS = (CELLS, *COUNTED, RESULTS / "learning_extraction", RESULTS / "learning_baselines")
METHODS = ["nlac", *EXTRACTION, SELF_DISTILLATION]
# Measured with an option that is gone.
METHODS.insert(METHODS.index("nlac_rehearsed_refinements"), "nlac_candidates_4")


def figures(cells: list[dict], steps: int) -> dict:
    """Return the figures of a method on a task, with the area under its curve up to `steps` environment steps."""
    return {
        "final": of_cells(cells, final_success),
        "area": of_cells(cells, lambda cell: area(cell, steps)),
        "reach": reach(cells, LEVEL * cells[0]["oracle_success"]),
        "costs": mean_costs(cells),
    }


def extraction(cells: list[dict]) -> dict:
    """
    Return the figures of every way on every task, and its differences to NLAC, paired by seed. Areas are those up to
    the smallest budget. Of two cells of the same run the later one counts.
    """
    tasks: dict[str, dict] = {}
    cells = latest(cells)
    for task in dict.fromkeys(cell["task"] for cell in cells if cell["method"] in EXTRACTION):
        ways, of_task = {}, [cell for cell in cells if cell["task"] == task and cell["method"] in METHODS]
        steps = min(cell["budget"] for cell in of_task)
        for method in METHODS:
            found = [cell for cell in of_task if cell["method"] == method]
            if found:
                ways[method] = figures(sorted(found, key=lambda cell: cell["seed"]), steps)
        for method, of in ways.items():
            if method != "nlac" and "nlac" in ways:
                of["minus_nlac"] = {name: difference(of[name], ways["nlac"][name]) for name in ("final", "area")}
        tasks[task] = ways
    gaps = {
        (task, method, name): compared
        for task, ways in tasks.items()
        for method, of in ways.items()
        for name, compared in of.get("minus_nlac", {}).items()
    }
    add_corrected(gaps)
    return {"tasks": tasks, "machines": reporting.machines(cells)}


def text(report: dict) -> str:
    """Write the tables and verdicts."""
    parts = []
    names = ["method", "seeds", "final success", "minus NLAC's", "area under the curve", "minus NLAC's"]
    names += REACH_NAMES
    for task, ways in report["tasks"].items():
        rows = []
        for method, of in ways.items():
            gaps = of.get("minus_nlac", {"final": None, "area": None})
            row = [label(method), str(len(of["final"]["seeds"]))]
            row += [rate(of["final"]), gap(gaps["final"]), rate(of["area"]), gap(gaps["area"])]
            rows.append([*row, *reach_words(of["reach"], len(of["final"]["seeds"]))])
        parts += [f"{task_label(task)}:", "", reporting.table(names, rows), ""]
        parts += [
            f"- {label(method)} is {judged(of['minus_nlac']['final'])} NLAC in final success, and "
            f"{judged(of['minus_nlac']['area'])} it in the area."
            for method, of in ways.items()
            if "minus_nlac" in of
        ]
        parts += ["", "Mean costs of training:", ""]
        parts += [cost_table({label(method): of["costs"] for method, of in ways.items()}), ""]
    return "\n".join(parts).rstrip()


def main():
    reporting.publish_cells(__doc__, FOLDERS, extraction, text, "learning/figures/extraction.py")


if __name__ == "__main__":
    main()
