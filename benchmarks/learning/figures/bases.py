# SPDX-License-Identifier: Apache-2.0

"""
Whether what is true of one base model is true of others: NLAC and hindsight from three builds of the tiny model.

python -m benchmarks.learning.figures.bases --json benchmarks/results/learning_bases.json \\
    --page docs/source/results_bases.md

The cells of a build lie in a folder with its name (seeds 1, 2 and 3 of builds, see benchmarks/learning/builds):

python -m benchmarks.learning.run --tasks service_desk_told service_desk_delayed --methods nlac hindsight \\
    --seeds 0 1 2 --temperatures 1 0 --base_model benchmarks/learning/builds/build_1 \\
    --cells benchmarks/results/learning_bases/build_1
"""

from functools import partial
from statistics import mean, stdev

from benchmarks import reporting
from benchmarks.learning.figures.seeds import difference, of_cells, over_seeds
from benchmarks.learning.figures.summary import RESULTS, mean_costs
from benchmarks.learning.figures.table import cost_table, gap, label, rate, task_label


CELLS = RESULTS / "learning_bases"
METHODS = ("nlac", "hindsight")
TEMPERATURES = (1.0, 0.0)


def success(cell: dict, temperature: float) -> float:
    """Return the success on held-out instances of the policy of a cell, with no unlikely token left out."""
    [found] = [
        decoded["success"]
        for decoded in cell["decoded"]
        if (decoded["instances"], decoded["temperature"], decoded["min_p"]) == ("held_out", temperature, 0.0)
    ]
    return found


def bases(cells: list[dict]) -> dict:
    """Return the success of both methods from every build on every task, and their differences."""
    tasks = {}
    for task in sorted({cell["task"] for cell in cells}):
        of_task = sorted((cell for cell in cells if cell["task"] == task), key=lambda cell: cell["seed"])
        builds = {
            build: {
                str(temperature): compare([cell for cell in of_task if cell["model"] == build], temperature)
                for temperature in TEMPERATURES
            }
            for build in sorted({cell["model"] for cell in of_task})
        }
        tasks[task] = {
            "builds": builds,
            "all_builds": {str(t): over_builds(builds, t) for t in TEMPERATURES},
            "all_desks": {str(t): over_desks(builds, t) for t in TEMPERATURES},
            "spread": {method: spread(builds, method) for method in METHODS},
            "costs": {method: costs([cell for cell in of_task if cell["method"] == method]) for method in METHODS},
        }
    return {"tasks": tasks, "machines": reporting.machines(cells)}


def compare(cells: list[dict], temperature: float) -> dict[str, dict | None]:
    """Return the success of both methods from one build, and their difference, paired by seed."""
    nlac, hindsight = (
        of_cells([cell for cell in cells if cell["method"] == method], partial(success, temperature=temperature))
        for method in METHODS
    )
    return {"nlac": nlac, "hindsight": hindsight, "difference": difference(nlac, hindsight)}


def over_builds(builds: dict[str, dict], temperature: float) -> dict | None:
    """Average the mean differences of builds: seeds of one build are not independent of each other."""
    found = {build: of[str(temperature)]["difference"] for build, of in builds.items()}
    return over_seeds({build: of["mean"] for build, of in found.items() if of})


def over_desks(builds: dict[str, dict], temperature: float) -> dict | None:
    """Average the differences of seeds over builds: a seed has the same desk whatever the build."""
    found = [of[str(temperature)]["difference"] for of in builds.values()]
    seeds = [of["seeds"] for of in found if of]
    shared = sorted(set.intersection(*map(set, seeds))) if seeds else []
    return over_seeds({seed: mean(of[seed] for of in seeds) for seed in shared})


def spread(builds: dict[str, dict], method: str) -> dict[str, float | None]:
    """
    Return how single runs differ in success at temperature 1: the standard deviations between the builds on one desk,
    and between the seeds, each with a desk of its own, of one build. Both are means.
    """
    found = [of["1.0"][method]["seeds"] for of in builds.values() if of["1.0"][method]]
    desks = [[of[seed] for of in found if seed in of] for seed in sorted({seed for of in found for seed in of})]
    spreads = {"between_builds": desks, "between_seeds": [list(of.values()) for of in found]}
    deviations = {name: [stdev(runs) for runs in groups if len(runs) > 1] for name, groups in spreads.items()}
    return {name: round(mean(values), 4) if values else None for name, values in deviations.items()}


def costs(cells: list[dict]) -> dict[str, dict | None]:
    """Return the mean costs of training over all seeds of all builds."""
    return mean_costs([{**cell, "seed": f"{cell['model']} {cell['seed']}"} for cell in cells])


def verdict(task: dict, temperature: float) -> str:
    """Say whether one method is ahead from every build, with an interval over builds that leaves out 0."""
    overall = task["all_builds"][str(temperature)]
    means = [] if overall is None else overall["seeds"].values()
    if len(means) < 3:
        return "not yet known: fewer than three builds"
    if all(mean > 0 for mean in means) and overall["low"] > 0:
        return "NLAC is ahead of hindsight from every build, on these desks"
    if all(mean < 0 for mean in means) and overall["high"] < 0:
        return "hindsight is ahead of NLAC from every build, on these desks"
    return "neither is ahead of the other from every build"


def text(report: dict) -> str:
    """Write the tables and the verdicts."""
    parts = []
    for name, task in report["tasks"].items():
        rows = [
            [
                *(build, f"{temperature:g}", str(len(of["difference"]["seeds"]) if of["difference"] else 0)),
                *(rate(of["nlac"]), rate(of["hindsight"]), gap(of["difference"])),
            ]
            for temperature in TEMPERATURES
            for build, all_of in task["builds"].items()
            for of in [all_of[str(temperature)]]
        ]
        names = ["build", "temperature", "seeds", "NLAC", "hindsight", "NLAC minus hindsight"]
        parts += [f"{task_label(name)}:", "", reporting.table(names, rows), ""]
        for temperature in TEMPERATURES:
            overall, desks = (gap(task[by][str(temperature)]) for by in ("all_builds", "all_desks"))
            parts.append(f"- At {temperature:g}, over all builds: {overall}. **{verdict(task, temperature)}**.")
            parts.append(f"- At {temperature:g}, over all desks, one for each seed: {desks}.")
        for method, of in task["spread"].items():
            if None not in of.values():
                parts.append(
                    f"- {label(method)} at 1, standard deviation: {of['between_builds']:.2f} between builds on one "
                    f"desk, {of['between_seeds']:.2f} between seeds of a build."
                )
        parts += ["", "Mean costs of training:", ""]
        parts += [cost_table({label(method): of for method, of in task["costs"].items()}), ""]
    return "\n".join(parts).rstrip()


def main():
    reporting.publish_cells(__doc__, [CELLS], bases, text, "learning/figures/bases.py")


if __name__ == "__main__":
    main()
