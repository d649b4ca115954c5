# SPDX-License-Identifier: Apache-2.0

"""The learning curves, as one picture."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import EngFormatter

from benchmarks.learning.figures.curves import mean_curve
from benchmarks.learning.figures.tables import Tables, label, task_label
from benchmarks.learning.tasks import OUTSIDE_THE_TABLE, TASKS


matplotlib.use("Agg")
matplotlib.rcParams.update({"font.size": 10, "legend.frameon": False})
matplotlib.rcParams.update({"axes.grid": 1, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})

# Okabe and Ito's palette, which is safe for colour-blind readers.
STYLES = {
    "nlac": ("#0072B2", "o"),
    "hindsight": ("#009E73", "s"),
    "self_distillation": ("#C9B800", "P"),
    "rft": ("#E69F00", "^"),
    "grpo": ("#D55E00", "D"),
    "scalar": ("#CC79A7", "v"),
    "base_remembering": ("#555555", "X"),
}


def plot(tables: Tables, path: Path) -> None:
    """Plot success against environment steps, a panel for each task, with 95 % intervals; dotted is an oracle."""
    found = {run[1] for run in tables.runs if run[0] == "table"}
    tasks = [task for task in (*TASKS, *OUTSIDE_THE_TABLE) if task in found]
    columns = min(3, len(tasks))
    shape = (-(-len(tasks) // columns), columns)
    figure, panels = plt.subplots(*shape, figsize=(3.4 * columns, 2.9 * shape[0] + 0.7), squeeze=False)
    for axes in panels.flat[len(tasks) :]:
        axes.axis("off")
    handles: dict[str, object] = {}
    for axes, task in zip(panels.flat, tasks, strict=False):
        first, last = [], []
        for method, (color, marker) in STYLES.items():
            cells = tables.of(task, method, "table", "baselines")
            if not cells or len(cells[0]["points"]) < 2:
                continue
            curve = mean_curve(cells)
            style = {"color": color, "marker": marker, "markevery": [-1], "label": label(method)}
            [handles[method]] = axes.plot(curve["steps"], curve["mean"], lw=1.8, **style)
            if curve["low"][0] is not None:
                low, high = (np.clip(curve[side], 0, 1) for side in ("low", "high"))
                axes.fill_between(curve["steps"], low, high, color=color, alpha=0.12, lw=0)
            first.append(curve["steps"][1])
            last.append(curve["steps"][-1])
        cells = next(of for run, of in tables.runs.items() if run[:2] == ("table", task))
        axes.axhline(cells[0]["oracle_success"], color="black", lw=1, ls=":")
        if first:
            axes.set_xscale("symlog", linthresh=min(first), linscale=0.5)
            marks = [mark * 10**exponent for exponent in range(6) for mark in (1, 3)]
            axes.set_xticks([0, *(mark for mark in marks if min(first) <= mark <= max(last))])
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.set_xlim(0, 1.25 * max(last))
        axes.set(title=task_label(task), ylim=(-0.02, 1.02), xlabel="environment steps", ylabel="success")
    figure.legend(handles=list(handles.values()), loc="upper center", ncols=4)
    figure.tight_layout(rect=(0, 0, 1, 0.9))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
