# SPDX-License-Identifier: Apache-2.0

"""The plots of the learning benchmark, each as PNG and SVG."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.learning.figures.table import COSTS, LABELS, label, task_label, variant


matplotlib.use("Agg")
matplotlib.rcParams.update({"font.size": 11, "svg.hashsalt": "learning", "legend.frameon": False})
matplotlib.rcParams.update(
    {"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
)

# Okabe and Ito's palette, which is safe for colour-blind readers.
BLUE, GREEN, RED, ORANGE = "#0072B2", "#009E73", "#D55E00", "#E69F00"
PINK, GREY, SKY, YELLOW = "#CC79A7", "#555555", "#56B4E9", "#C9B800"  # darker than theirs, to be seen on white
COLORS = dict(zip(LABELS, (BLUE, GREEN, RED, ORANGE, PINK, GREY, SKY, YELLOW), strict=True))
MARKERS = dict(zip(LABELS, "osD^vXPp", strict=True))
DASHES = ("--", ":", "-.")  # settings of NLAC share its colour
MAX_LINES = 8  # of a panel


def save(figure: Figure, path: Path) -> None:
    """Save a figure as PNG and SVG. The same figure gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".png"), dpi=150)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)


def draw(axes: Axes, curve: dict, cost: str, **style) -> None:
    """Draw a mean over seeds with its band, and a marker at its end."""
    x, color = curve[cost], style["color"]
    axes.plot(x, curve["mean"], lw=2, markevery=[-1], ms=7, **style)
    if curve["low"][0] is not None:
        axes.fill_between(x, np.clip(curve["low"], 0, 1), np.clip(curve["high"], 0, 1), color=color, alpha=0.13, lw=0)


def scale(axes: Axes, curves: list[dict], cost: str, subs: tuple[int, ...]) -> None:
    """Scale the axis of a cost from zero, linearly up to the first evaluation and logarithmically after it."""
    first, last = min(curve[cost][1] for curve in curves), max(curve[cost][-1] for curve in curves)
    axes.set_xscale("symlog", linthresh=first, linscale=0.5)
    marks = [mark * 10**exponent for exponent in range(-1, 13) for mark in subs]
    axes.set_xticks([0, *(mark for mark in marks if first <= mark <= last)])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlim=(0, 1.25 * last), xlabel=COSTS[cost], ylim=(-0.02, 1.02))


def plot_task(name: str, task: dict, methods: list[str], settings: list[str], path: Path) -> None:
    """
    Plot the success on one task against environment steps, tokens and seconds. The dotted line is the oracle.

    Args:
        name (`str`):
            Name of the task.
        task (`dict`):
            Its figures.
        methods (`list[str]`):
            Methods to draw, the first `MAX_LINES` of those that were run. Methods without training are level lines.
        settings (`list[str]`):
            Settings of NLAC among them.
        path (`Path`):
            Output file, without its extension.
    """
    figure = plt.figure(figsize=(8, 6.8), layout="constrained")
    panels = figure.subplot_mosaic(
        [["environment_steps"] * 2, ["generated_tokens", "seconds"]], height_ratios=[1.4, 1]
    )
    shown = [method for method in methods if method in task["methods"]][:MAX_LINES]
    for cost, axes in panels.items():
        axes.axhline(task["oracle_success"], color="black", lw=1, ls=":")
        curves = []
        for method in shown:
            style = {"color": COLORS.get(method, BLUE), "label": label(method)}
            curve = task["curves"][method][cost]
            if curve is None:
                axes.axhline(task["methods"][method]["final"]["mean"], lw=1.5, ls=(0, (4, 3)), **style)
                continue
            if method in settings:
                style["ls"] = DASHES[settings.index(method) % len(DASHES)]
            draw(axes, curve, cost, marker=MARKERS.get(method, "o"), **style)
            curves.append(curve)
        if curves:
            scale(axes, curves, cost, subs=(1, 2, 5) if cost == "environment_steps" else (1, 3))
        axes.set_ylabel("success")
    handles, labels = panels["environment_steps"].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=4,
        handlelength=2.6,
        title=f"{task_label(name)}: success",
    )
    save(figure, path)


def plot_critic(tasks: dict[str, dict], path: Path) -> None:
    """Plot the accuracy of NLAC's critic during training, one line for each task."""
    metrics = {"future_accuracy": "future is right", "verdict_accuracy": "verdict is right (balanced)"}
    figure, panels = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
    for axes, (metric, words) in zip(panels, metrics.items(), strict=True):
        curves = {name: task["critic_curves"][metric] for name, task in tasks.items() if task["critic_curves"][metric]}
        for i, (name, curve) in enumerate(curves.items()):
            style = dict(color=list(COLORS.values())[i], marker=list(MARKERS.values())[i], label=task_label(name))
            draw(axes, curve, "environment_steps", **style)
        if curves:
            scale(axes, list(curves.values()), "environment_steps", subs=(1, 3))
        axes.set(title=words)
    panels[0].set_ylabel("share of critiques")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    save(figure, path)


def plot_ablations(tasks: dict[str, dict], path: Path) -> None:
    """Plot the difference of each ablation to NLAC with the same budget, paired by seed, one dot for each task."""
    tasks = {name: task for name, task in tasks.items() if task["ablations"]}
    names = sorted({name for task in tasks.values() for name in task["ablations"]}, reverse=True)
    places = {}  # heights of the dots, spread around the row of the ablation
    for row, name in enumerate(names):
        rivals = [task_name for task_name, task in tasks.items() if name in task["ablations"]]
        for i, task_name in enumerate(rivals):
            places[task_name, name] = row - 0.6 * ((i + 0.5) / len(rivals) - 0.5)
    height = 1.6 + 0.4 * len(names)
    figure, panels = plt.subplots(1, 2, figsize=(8, height), sharey=True, layout="constrained")
    for axes, metric in zip(panels, ("success", "area"), strict=True):
        axes.axvline(0, color="black", lw=1)
        for i, (task_name, task) in enumerate(tasks.items()):
            found = {name: task["ablations"][name][metric] for name in names if name in task["ablations"]}
            found = {name: value for name, value in found.items() if value}
            low, high = (
                [value[end] if value[end] is not None else value["mean"] for value in found.values()]
                for end in ("low", "high")
            )
            y, color = [places[task_name, name] for name in found], list(COLORS.values())[i]
            axes.hlines(y, low, high, color=color, lw=2)
            means = [value["mean"] for value in found.values()]
            axes.plot(means, y, ls="", marker=list(MARKERS.values())[i], color=color, label=task_label(task_name))
        axes.set(title=metric, xlabel="difference to NLAC", yticks=range(len(names)), yticklabels=map(variant, names))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    save(figure, path)
