# SPDX-License-Identifier: Apache-2.0

"""
Whether methods learn something that helps on desks that they were not trained on: desks whose rules stand in a
handbook.

python -m benchmarks.learning.figures.generalisation --json benchmarks/results/learning_generalisation.json \\
    --page docs/source/results_generalisation.md

The cells:

python -m benchmarks.learning.run --tasks service_desk_handbook --seeds 0 1 2 \\
    --methods nlac self_distillation grpo rft base_refined taught --cells benchmarks/results/learning_generalisation
"""

from benchmarks import reporting
from benchmarks.learning.figures.seeds import difference, of_cells
from benchmarks.learning.figures.summary import RESULTS, final_success, mean_costs, measured
from benchmarks.learning.figures.table import cost_table, gap, label, rate


CELLS = RESULTS / "learning_generalisation"
METHODS = (
    "nlac",
    "nlac_fresh_actions",
    "nlac_policy_distill",
    "self_distillation",
    "grpo",
    "rft",
    "base",
    "base_refined",
    "taught",
)


def generalisation(cells: list[dict]) -> dict:
    """
    Return the success of every method before training, and after it on desks of training and on others, on these also
    greedily where that was measured; and where desks have an oracle the accuracy of the critic's verdicts before and
    after.
    """
    methods = {}
    for method in METHODS:
        found = sorted((cell for cell in cells if cell["method"] == method), key=lambda cell: cell["seed"])
        if found:
            success = {
                "before": of_cells(found, lambda cell: measured(cell["points"][0], "success")),
                "unseen": of_cells(found, final_success),
                "greedy": of_cells(found, lambda cell: measured(cell["final"].get("greedy", {}), "success")),
                "trained": of_cells(found, lambda cell: measured(cell["final"]["train"], "success")),
            }
            verdicts = {
                "verdicts_before": of_cells(found, lambda cell: measured(cell["points"][0], "verdict_accuracy")),
                "verdicts_after": of_cells(
                    found, lambda cell: measured(cell["final"]["held_out"], "verdict_accuracy")
                ),
            }
            more = difference(success["trained"], success["unseen"])
            methods[method] = {**success, **verdicts, "gap": more, "costs": mean_costs(found)}
    return {"methods": methods, "machines": reporting.machines(cells)}


def text(report: dict) -> str:
    """Write the tables. Only where there is an oracle, there are verdicts."""
    greedy = {"greedy": "after, greedy"} if any(of["greedy"] for of in report["methods"].values()) else {}
    names = {"before": "unseen desks, before", "unseen": "after", **greedy, "trained": "desks of training, after"}
    verdicts = {"verdicts_before": "right verdicts on unseen desks, before", "verdicts_after": "after"}
    if not any(of[when] for of in report["methods"].values() for when in verdicts):
        verdicts = {}
    rows = [
        [
            *(label(method), str(len(of["unseen"]["seeds"])), *(rate(of[when]) for when in names), gap(of["gap"])),
            *(rate(of[when]) for when in verdicts),
        ]
        for method, of in report["methods"].items()
    ]
    columns = ["method", "seeds", *names.values(), "difference", *verdicts.values()]
    costs = cost_table({label(method): of["costs"] for method, of in report["methods"].items()})
    return "\n".join([reporting.table(columns, rows), "", "Mean costs of training:", "", costs])


def main():
    reporting.publish_cells(__doc__, [CELLS], generalisation, text, "learning/figures/generalisation.py")


if __name__ == "__main__":
    main()
