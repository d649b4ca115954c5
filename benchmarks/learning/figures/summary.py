# SPDX-License-Identifier: Apache-2.0

"""
Statistics over the cells of the learning benchmark: one JSON with every figure of the report.

python -m benchmarks.learning.figures.summary --json benchmarks/results/learning.json
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np

from benchmarks import reporting
from benchmarks.learning.figures.claims import claims
from benchmarks.learning.figures.search import changed_settings, searches
from benchmarks.learning.figures.seeds import difference, of_cells, over_seeds
from benchmarks.learning.figures.table import COSTS
from benchmarks.learning.methods.settings import ABLATIONS_BY_TASK, PLAIN
from benchmarks.learning.tasks import TASKS
from trl_nlac import NLACConfig


RESULTS = Path("benchmarks/results")
CELLS, SEARCHED = RESULTS / "learning", RESULTS / "learning_search"
# Cells with settings of the table that count every cost, where the table's do not.
COUNTED = (RESULTS / "learning_sharpening", RESULTS / "learning_counted")
AGAIN = RESULTS / "learning_again"  # the table's cells, run again with newer code
SPENT = ("environment_steps", "gradient_steps", "generated_tokens", "prefilled_tokens", "trained_tokens", "seconds")
SEEDS = (0, 1, 2, 3, 4)
METHODS = ("nlac", "hindsight", "grpo", "rft", "scalar", "base", "base_refined", "base_remembering")
SETTINGS = ()  # of NLAC, in addition to "nlac"; all other methods that start with "nlac_" are ablations
LEVELS = (0.5, 0.8)  # of the oracle's success
METRICS = {
    "success": ("episode/success_rate",),
    "future_accuracy": ("oracle/future_accuracy",),
    "verdict_accuracy": ("oracle/verdict_yes_rate", "oracle/verdict_no_rate"),
    "refined_better_rate": ("oracle/refined_better_rate",),
}
CRITIC_METRICS = tuple(METRICS)[1:]


def latest(cells: list[dict]) -> list[dict]:
    """Return the cells without those that a later one measures again."""
    return list({(cell["task"], cell["method"], cell["seed"]): cell for cell in cells}.values())


def measured(point: dict[str, float], metric: str) -> float | None:
    """
    Return one of `METRICS`, the mean of its rates. With both verdict rates that is the balanced accuracy. `None` where
    a rate is missing.
    """
    rates = [point[name] for name in METRICS[metric] if name in point]
    return mean(rates) if len(rates) == len(METRICS[metric]) else None


def final_success(cell: dict) -> float | None:
    """Return the success on held-out instances at the end of a run."""
    return measured(cell["final"]["held_out"], "success")


def point_at(cell: dict, steps: float) -> dict:
    """Return the last evaluation at or before this number of environment steps."""
    return [point for point in cell["points"] if point["environment_steps"] <= steps][-1]


def area(cell: dict, steps: float) -> float:
    """
    Return the mean success up to this number of environment steps: the area under the curve, divided by the steps.
    Success is interpolated linearly between evaluations and is constant after the last one.
    """
    spent = [point["environment_steps"] for point in cell["points"]]
    grid = np.array([0, *(x for x in spent if 0 < x < steps), steps])
    success = np.interp(grid, spent, [measured(point, "success") for point in cell["points"]])
    return float(((success[1:] + success[:-1]) / 2 * np.diff(grid)).sum() / steps)


def reach(cells: list[dict], success: float) -> dict[str, float | None]:
    """
    Return the costs of the first evaluation with at least this success: the median over seeds, where seeds that never
    reach it count as infinite, or `None` if the median is infinite; `num_seeds`, the number of seeds that reach it;
    and `seeds`, the environment steps of each of these.
    """
    firsts = [next((p for p in cell["points"] if measured(p, "success") >= success), None) for cell in cells]
    medians = {cost: median(point[cost] if point else math.inf for point in firsts) for cost in COSTS}
    steps = {str(c["seed"]): first["environment_steps"] for c, first in zip(cells, firsts, strict=True) if first}
    return {
        "num_seeds": len(steps),
        "seeds": steps,
        **{cost: value if math.isfinite(value) else None for cost, value in medians.items()},
    }


def curve(cells: list[dict], metric: str, cost: str) -> dict[str, list[float]] | None:
    """
    Return the mean over seeds of a metric against a cost, with its interval, at evenly spaced costs: as many as the
    longest run has evaluations, interpolated linearly. A seed that has ended keeps its last value. `None` if no seed
    has a curve.
    """
    seeds = [[point for point in cell["points"] if measured(point, metric) is not None] for cell in cells]
    seeds = [points for points in seeds if points]
    if max(map(len, seeds), default=0) < 2:
        return None
    grid = np.linspace(0, max(points[-1][cost] for points in seeds), max(map(len, seeds)))
    lines = [
        np.interp(grid, [point[cost] for point in points], [measured(point, metric) for point in points])
        for points in seeds
    ]
    columns = [over_seeds(dict(enumerate(map(float, column)))) for column in zip(*lines, strict=True)]
    return {
        cost: [round(float(x), 1) for x in grid],
        **{name: [column[name] for column in columns] for name in ("mean", "low", "high")},
    }


def mean_costs(cells: list[dict]) -> dict[str, dict | None]:
    """Average every cost of training over seeds; `None` where no cell counts it."""
    return {cost: of_cells(cells, lambda cell, cost=cost: cell["points"][-1].get(cost)) for cost in SPENT}


def summarize_method(cells: list[dict], common_budget: float | None) -> dict:
    """Return the figures of one method on a task. Every method there has spent `common_budget` environment steps."""

    of = partial(of_cells, cells)

    def instances_success(when: str, instances: str) -> dict | None:
        return of(lambda cell: measured(cell[when].get(instances, {}), "success"))

    def after_share(metric: str, share: float) -> dict | None:
        return of(lambda cell: measured(point_at(cell, share * cell["points"][-1]["environment_steps"]), metric))

    return {
        "num_seeds": len(cells),
        "budget": cells[0]["budget"],
        "spent": {cost: mean(cell["points"][-1][cost] for cell in cells) for cost in COSTS},
        "gradient_steps_per_environment_step": of(
            lambda cell: cell["points"][-1]["gradient_steps"] / (cell["points"][-1]["environment_steps"] or math.inf)
        ),
        "final": instances_success("final", "held_out"),
        "at_common_budget": common_budget and of(lambda cell: measured(point_at(cell, common_budget), "success")),
        "area": common_budget and of(lambda cell: area(cell, common_budget)),
        "reach": {str(level): reach(cells, level * cells[0]["oracle_success"]) for level in LEVELS},
        "train": instances_success("final", "train"),
        "unseen_domain": {
            "before": instances_success("before", "unseen_domain"),
            "after": instances_success("final", "unseen_domain"),
        },
        "critic": {
            metric: {stage: after_share(metric, share) for stage, share in (("start", 0), ("middle", 0.5), ("end", 1))}
            for metric in CRITIC_METRICS
        },
    }


def training_costs(cells: list[dict], counted: list[dict]) -> dict:
    """
    Return the mean costs of training of one method on a task. What `cells` do not count is the mean of those of
    `counted` that have the same settings, of which `num_other_runs` says the number, or missing if there are none.
    """
    same = [cell for cell in counted if have_same_settings(cell, cells[0])]
    missing = {cost for cost in SPENT if any(cost not in cell["points"][-1] for cell in cells)}
    means = {
        cost: mean(cell["points"][-1][cost] for cell in (same if cost in missing else cells))
        for cost in SPENT
        if same or cost not in missing
    }
    return {"num_other_runs": len(same) if missing else 0, **means}


def have_same_settings(cell: dict, other: dict) -> bool:
    """
    Whether two cells have the same budget and settings. What the first states and the second does not may be the
    default of an option.
    """
    defaults = {option.name: option.default for option in fields(NLACConfig)}
    changes = changed_settings(cell, other)
    return cell["budget"] == other["budget"] and all(
        name in defaults and value == defaults[name] for name, value in changes.items()
    )


def compare(ablated: list[dict], plain: list[dict]) -> dict:
    """Return the differences of an ablation to NLAC after `steps`, the smaller number of steps of the two."""
    steps = min(
        max(cell["points"][-1]["environment_steps"] for cell in cells) for cells in (ablated, plain or ablated)
    )
    values = {
        "success": lambda cell: measured(point_at(cell, steps), "success"),
        "area": lambda cell: area(cell, steps),
    }
    differences = {
        name: difference(of_cells(ablated, value), of_cells(plain, value)) for name, value in values.items()
    }
    return {"steps": steps, **differences}


def summarize_task(cells: list[dict], methods: list[str], counted: Sequence[dict] = ()) -> dict:
    """
    Return all figures of one task. `common_budget` are the steps of the methods with the smallest budget, including
    those by which their last iteration exceeded it, so that their last evaluation counts. `counted` are cells for
    [`training_costs`].
    """
    by_method: dict[str, list[dict]] = {}
    for cell in sorted(cells, key=lambda cell: cell["seed"]):
        by_method.setdefault(cell["method"], []).append(cell)
    for method, seeds in by_method.items():
        if len({cell["budget"] for cell in seeds}) > 1:
            budgets = ", ".join(f"{cell['budget']} (seed {cell['seed']})" for cell in seeds)
            raise ValueError(f"The cells of {method} on {seeds[0]['task']} have different budgets: {budgets}.")
        for cell in seeds[1:]:
            changes = changed_settings(cell, seeds[0])
            if changes:
                raise ValueError(
                    f"Seeds {seeds[0]['seed']} and {cell['seed']} of {method} on {cell['task']} have different "
                    f"settings: the second has {changes}. Run them again with the same settings."
                )
    trained = [cell for cell in cells if cell["method"] in methods and len(cell["points"]) > 1]
    smallest = min((cell["budget"] for cell in trained), default=None)
    ends = [cell["points"][-1]["environment_steps"] for cell in trained if cell["budget"] == smallest]
    common_budget = max(ends, default=None)
    names = [method for method in methods if method in by_method] + sorted(by_method.keys() - set(methods))
    figures = {method: summarize_method(by_method[method], common_budget) for method in names}
    return {
        "oracle_success": cells[0]["oracle_success"] if cells else None,
        "common_budget": common_budget,
        "methods": figures,
        "costs": {
            method: training_costs(by_method[method], [cell for cell in counted if cell["method"] == method])
            for method in names
            if method in methods and figures[method]["spent"]["environment_steps"]
        },
        "curves": {
            method: {cost: curve(by_method[method], "success", cost) for cost in COSTS}
            for method in names
            if method in methods
        },
        "critic_curves": {
            metric: curve(by_method.get("nlac", []), metric, "environment_steps") for metric in CRITIC_METRICS
        },
        "ablations": {
            method: compare(by_method[method], by_method.get(PLAIN) or by_method.get("nlac", []))
            for method in names
            if method not in (*methods, PLAIN)
        },
    }


def find_missing(
    cells: list[dict],
    tasks: Sequence[str],
    methods: Sequence[str],
    ablations: Mapping[str, Sequence[str]],
    expected: Sequence[int],
) -> list[dict]:
    """
    Find missing cells: seeds that are expected, or that another method has, and that a method lacks on a task. Checked
    are `methods`, the `ablations` of the task and all methods that have a cell on it.
    """
    missing = []
    for task in tasks:
        done: dict[str, set[int]] = {method: set() for method in (*methods, *ablations.get(task, ()))}
        for cell in cells:
            if cell["task"] == task:
                done.setdefault(cell["method"], set()).add(cell["seed"])
        seeds = set(expected).union(*done.values()) or {cell["seed"] for cell in cells}
        missing += [
            {"task": task, "method": method, "seeds": sorted(seeds - there)}
            for method, there in done.items()
            if seeds - there
        ]
    return missing


def summarize(
    cells: list[dict],
    tasks: Sequence[str] = TASKS,
    methods: Sequence[str] = METHODS,
    settings: Sequence[str] = SETTINGS,
    ablations: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[int] = (),
    counted: Sequence[dict] = (),
) -> dict:
    """
    Return all figures.

    Args:
        cells (`list[dict]`):
            Reports of the runs.
        tasks (`Sequence[str]`):
            Expected tasks.
        methods (`Sequence[str]`):
            Methods that are compared on every task, `"nlac"` first.
        settings (`Sequence[str]`):
            Further settings of NLAC that are compared where they were run. Any other method counts as an ablation.
        ablations (`Mapping[str, Sequence[str]]`, *optional*):
            Expected ablations, by task.
        seeds (`Sequence[int]`, *optional*):
            Expected seeds of every cell, in addition to those that any method has.
        counted (`Sequence[dict]`, *optional*):
            Reports of other runs with the same settings, for costs that `cells` do not count.

    Raises:
        ValueError: If seeds of a method on a task had different budgets or settings.
    """
    compared = [methods[0], *settings, *methods[1:]]
    return {
        "methods": compared,
        "settings": list(settings),
        "tasks": {
            task: summarize_task(
                [cell for cell in cells if cell["task"] == task],
                compared,
                [cell for cell in counted if cell["task"] == task],
            )
            for task in tasks
        },
        "missing": find_missing(cells, tasks, methods, ablations or {}, seeds),
        "num_cells": len(cells),
        "hours": round(sum(cell["points"][-1]["seconds"] for cell in cells) / 3600, 1),
        "machines": reporting.machines(cells),
    }


def summarize_folders(
    cells: Path, searched: Path, settings: Sequence[str] = SETTINGS, seeds: Sequence[int] = SEEDS
) -> dict:
    """
    Return all figures of the cells in a folder, at any depth, with the verdicts on the claims, and the results of the
    cells of other settings in another folder.

    Raises:
        ValueError: If seeds of a method on a task had different budgets or settings.
    """
    table, others = reporting.read_cells(cells), reporting.read_cells(searched)
    counted = reporting.read_cells(*COUNTED, AGAIN)
    summary = summarize(table, settings=settings, ablations=ABLATIONS_BY_TASK, seeds=seeds, counted=counted)
    summary["searches"] = searches(others, table)
    summary["claims"] = claims(summary)
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, default=CELLS)
    parser.add_argument(
        "--searches", type=Path, default=SEARCHED, help="folder of cells with other settings, at any depth"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "learning.json")
    parser.add_argument("--settings", nargs="*", default=SETTINGS, help="methods nlac_* that are not ablations")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="expected seeds of each cell")
    args = parser.parse_args()
    summary = summarize_folders(args.cells, args.searches, args.settings, args.seeds)
    reporting.write(summary, args.json)
    for claim in summary["claims"]:
        print(claim["claim"], claim.get("task", ""), claim["verdict"])


if __name__ == "__main__":
    main()
