# SPDX-License-Identifier: Apache-2.0

"""
How methods learn a game of textarena, against its exact solver.

python -m benchmarks.learning.figures.game --json benchmarks/results/learning_game.json \\
    --page docs/source/results_game.md

The cells:

python -m benchmarks.learning.run --tasks guess_the_number --seeds 0 1 2 \\
    --methods nlac nlac_compliant nlac_unsharpened nlac_unsharpened_distill nlac_unsharpened_compliant hindsight \\
    self_distillation scalar grpo rft base_refined taught --cells benchmarks/results/learning_game
"""

from collections.abc import Callable

from benchmarks import reporting
from benchmarks.learning.figures.seeds import difference, of_cells
from benchmarks.learning.figures.summary import RESULTS, mean_costs
from benchmarks.learning.figures.table import cost_table, gap, label, rate
from benchmarks.learning.guess_the_number import REFERENCES
from benchmarks.learning.methods.settings import AS_LIKELY


CELLS = RESULTS / "learning_game"
METHODS = (
    "nlac",
    "nlac_compliant",
    *AS_LIKELY,
    "hindsight",
    "self_distillation",
    "scalar",
    "grpo",
    "rft",
    "base_refined",
    "taught",
)
SEEN = {
    "success": "episode/success_rate",
    "length": "episode/length",
    "future": "oracle/future_accuracy",
    "better": "oracle/refined_better_rate",
}


def seen(cells: list[dict], point: Callable[[dict], dict]) -> dict[str, dict | None]:
    """Return what one evaluation of each cell saw."""
    return {name: of_cells(cells, lambda cell, name=name: point(cell).get(SEEN[name])) for name in SEEN}


def game(cells: list[dict]) -> dict:
    """Return the figures of every method before and after training, and NLAC's difference to it."""
    methods: dict[str, dict] = {}
    for method in METHODS:
        found = sorted((cell for cell in cells if cell["method"] == method), key=lambda cell: cell["seed"])
        if found:
            before = seen(found, lambda cell: cell["points"][0])
            after = seen(found, lambda cell: cell["final"]["held_out"])
            costs = mean_costs(found)
            methods[method] = {"before": before, "after": after, "costs": costs}
    ours = methods.get("nlac", {}).get("after", {}).get("success")
    for of in methods.values():
        of["nlac_minus_it"] = difference(ours, of["after"]["success"])
    return {"references": REFERENCES, "methods": methods, "machines": reporting.machines(cells)}


def paired(compared: dict | None) -> str:
    """Format a difference, with the number of seeds that both methods have."""
    if compared is None:
        return gap(None)
    number = len(compared["seeds"])
    return f"{gap(compared)}, {number} seed{'s' if number > 1 else ''}"


def text(report: dict) -> str:
    """Write the tables."""
    names = ["method", "seeds", "success before", "success after", "guesses", "NLAC minus it"]
    names += ["futures that can happen", "refined guesses that are better"]
    rows = []
    for method, of in report["methods"].items():
        after = of["after"]
        rows.append([label(method), str(len(after["success"]["seeds"])), rate(of["before"]["success"])])
        rows[-1] += [rate(after["success"]), f"{after['length']['mean']:.2f}"]
        rows[-1] += [
            "–" if method == "nlac" else paired(of["nlac_minus_it"]),
            rate(after["future"]),
            rate(after["better"]),
        ]
    players = [[name.capitalize(), f"{success:.2f}"] for name, success in report["references"].items()]
    costs = cost_table({label(method): of["costs"] for method, of in report["methods"].items()})
    parts = [reporting.table(["player", "success"], players), "", reporting.table(names, rows)]
    return "\n".join([*parts, "", "Mean costs of training:", "", costs])


def main():
    reporting.publish_cells(__doc__, [CELLS], game, text, "learning/figures/game.py")


if __name__ == "__main__":
    main()
