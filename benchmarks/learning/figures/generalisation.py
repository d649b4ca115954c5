# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

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
from benchmarks.learning.figures.summary import RESULTS, difference, mean_costs, measured, of_cells
from benchmarks.learning.figures.table import cost_table, gap, label, rate


CELLS = RESULTS / "learning_generalisation"
METHODS = ("nlac", "self_distillation", "grpo", "rft", "base_refined", "taught")


def generalisation(cells: list[dict]) -> dict:
    """Return the success of every method before training, and after it on desks of training and on others."""
    methods = {}
    for method in METHODS:
        found = sorted((cell for cell in cells if cell["method"] == method), key=lambda cell: cell["seed"])
        if found:
            success = {
                "before": of_cells(found, lambda cell: measured(cell["points"][0], "success")),
                "unseen": of_cells(found, lambda cell: measured(cell["final"]["held_out"], "success")),
                "trained": of_cells(found, lambda cell: measured(cell["final"]["train"], "success")),
            }
            costs = mean_costs(found)
            methods[method] = {**success, "gap": difference(success["trained"], success["unseen"]), "costs": costs}
    return {"methods": methods, "machines": reporting.machines(cells)}


def text(report: dict) -> str:
    """Write the tables."""
    rows = [
        [
            *(label(method), str(len(of["unseen"]["seeds"]))),
            *(rate(of[when]) for when in ("before", "unseen", "trained")),
            gap(of["gap"]),
        ]
        for method, of in report["methods"].items()
    ]
    names = ["method", "seeds", "unseen desks, before", "after", "desks of training, after", "difference"]
    costs = cost_table({label(method): of["costs"] for method, of in report["methods"].items()})
    return "\n".join([reporting.table(names, rows), "", "Mean costs of training:", "", costs])


def main():
    reporting.publish_cells(__doc__, [CELLS], generalisation, text, "learning/figures/generalisation.py")


if __name__ == "__main__":
    main()
