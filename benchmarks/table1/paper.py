# SPDX-License-Identifier: Apache-2.0
"""Table 1 of the paper, and how it is compared with."""

from typing import Any

from benchmarks import reporting


# Columns, by the name of an evaluation set: accuracy, win rate, and success on two companies.
COLUMNS = {"math": "MATH500-Hard", "20q": "20Q", "retail": "τ-bench retail", "airline": "τ-bench airline"}
# As printed, except that the first two columns are shares here, too.
PAPER = {
    "Qwen2.5-7B-Instruct": {
        "rft": {"math": 0.525, "20q": 0.126, "retail": 0.21, "airline": 0.13},
        "ppo": {"math": 0.523, "20q": 0.172, "retail": 0.28, "airline": 0.14},
        "grpo": {"math": 0.498, "20q": 0.184, "retail": 0.24, "airline": 0.11},
        "sac": {"math": 0.482, "20q": 0.098, "retail": 0.18, "airline": 0.11},
        "nlac": {"math": 0.602, "20q": 0.260, "retail": 0.42, "airline": 0.22},
    },
    "QwQ-32B": {
        "rft": {"math": 0.725, "20q": 0.220, "retail": 0.35, "airline": 0.29},
        "ppo": {"math": 0.714, "20q": 0.240, "retail": 0.47, "airline": 0.41},
        "grpo": {"math": 0.708, "20q": 0.256, "retail": 0.48, "airline": 0.39},
        "sac": {"math": 0.647, "20q": 0.132, "retail": 0.31, "airline": 0.21},
        "nlac": {"math": 0.727, "20q": 0.321, "retail": 0.59, "airline": 0.45},
    },
}
LABELS = {"nlac": "NLAC", "rft": "RFT", "grpo": "GRPO"}


def figures_of_paper(model: str, method: str) -> dict[str, float]:
    """Return the paper's figures of a method with a model, by column; none for another model."""
    return PAPER.get(model.rstrip("/").rpartition("/")[2], {}).get(method, {})


def row(results: dict[str, dict[str, Any]], model: str, method: str) -> str:
    """Write the row of a method: success before and after training with 95 % intervals, by column, and the paper's."""
    printed = figures_of_paper(model, method)
    rows = []
    for name, result in results.items():
        measured = [reporting.interval(result[when]) if when in result else "–" for when in ("before", "after")]
        rows.append([COLUMNS[name], *measured, f"{printed[name]:.2f}" if name in printed else "–"])
    table = reporting.table([f"{LABELS[method]}, {model}", "before", "after", "paper"], rows)
    return f"{table}\n"
