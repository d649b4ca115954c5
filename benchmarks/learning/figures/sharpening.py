# SPDX-License-Identifier: Apache-2.0

"""
Whether NLAC's success beyond hindsight's is knowledge, or only a sharper policy: policies that were trained with
sampled actions are decoded at several temperatures, all with the same `min_p`.

python -m benchmarks.learning.figures.sharpening --json benchmarks/results/learning_sharpening.json \\
    --page docs/source/results_temperature.md

The cells:

python -m benchmarks.learning.run --tasks service_desk_noisy service_desk_delayed --temperatures 1 0.5 0 \\
    --methods nlac nlac_critiques_at_1 hindsight hindsight_acts_sharply --cells benchmarks/results/learning_sharpening
python -m benchmarks.learning.run --tasks service_desk_hinted --temperatures 1 0.5 0 \\
    --methods nlac hindsight --cells benchmarks/results/learning_sharpening
python -m benchmarks.learning.run --tasks service_desk_noisy service_desk_delayed --temperatures 1 0.5 0 \\
    --methods self_distillation --cells benchmarks/results/learning_sharpening
python -m benchmarks.learning.run --tasks service_desk_noisy service_desk_delayed --temperatures 1 0.5 0 \\
    --methods self_distillation_reverse --cells benchmarks/results/learning_baselines
"""

from typing import Any

from benchmarks import reporting
from benchmarks.learning.figures.seeds import LEAST_SEEDS, difference, of_cells
from benchmarks.learning.figures.summary import RESULTS, mean_costs
from benchmarks.learning.figures.table import cost_table, gap, label, rate, task_label
from benchmarks.learning.methods.settings import SELF_DISTILLATIONS, SHARPENED_HINDSIGHT, SHARPENING


FOLDERS = (RESULTS / "learning_sharpening", RESULTS / "learning_baselines")
REPORT = RESULTS / "learning_sharpening.json"
METHODS = ("nlac", "hindsight", *SHARPENING, *SELF_DISTILLATIONS)
RIVALS = ("hindsight", SHARPENED_HINDSIGHT, *SELF_DISTILLATIONS)  # without a learned critic
NAMES = {"held_out": "held-out customers", "train": "customers of training"}
STANDS, SHARPNESS, WITHDRAWN = "stands", "is one of sharpness alone", "is withdrawn"
UNJUDGED = f"is not judged yet: it needs {LEAST_SEEDS} seeds of both"
# The same verdicts of rivals that differ from NLAC in more than the critic.
OF_OTHERS = {
    STANDS: "is above it, also when both are greedy",
    SHARPNESS: "is above it at temperature 1, and not told apart from it when both are greedy",
    WITHDRAWN: "is not told apart from it",
    UNJUDGED: UNJUDGED,
}


def at(decoded: list[dict], temperature: float, instances: str = "held_out", min_p: float = 0.0) -> Any:
    """Return the success at a temperature and cut, of one cell or over seeds."""
    wanted = {"instances": instances, "temperature": temperature, "min_p": min_p}
    (found,) = [of["success"] for of in decoded if of.items() >= wanted.items()]
    return found


def over_cells(cells: list[dict]) -> list[dict]:
    """Return the success of a method at every temperature and cut, over seeds."""
    settings = [{name: value for name, value in of.items() if name != "success"} for of in cells[0]["decoded"]]
    return [
        {**setting, "success": of_cells(cells, lambda cell, setting=setting: at(cell["decoded"], **setting))}
        for setting in settings
    ]


def verdict(differences: dict[str, dict]) -> str:
    """
    Judge the claim that the learned critic helps, by the 95 % intervals of the differences of success to a rival on
    held-out customers: it stands if greedy policies differ, too.
    """
    greedy, sampled = differences["0.0"], differences["1.0"]
    if greedy is None or len(greedy["seeds"]) < LEAST_SEEDS:
        return UNJUDGED
    if greedy["low"] > 0:
        return STANDS
    return SHARPNESS if sampled["low"] > 0 else WITHDRAWN


def compare(arms: dict[str, dict], rival: str) -> dict:
    """Compare NLAC with a rival, paired by seed, at every temperature, with no token left out."""
    ours, theirs = arms["nlac"]["decoded"], arms[rival]["decoded"]
    temperatures = [of["temperature"] for of in ours if of["instances"] == "held_out"]
    differences = {
        str(float(temperature)): difference(at(ours, temperature), at(theirs, temperature))
        for temperature in dict.fromkeys(temperatures)
    }
    return {"differences": differences, "verdict": verdict(differences)}


def sharpening(cells: list[dict]) -> dict:
    """Return the figures of every method on every task, and the verdicts."""
    cells = [cell for cell in cells if "decoded" in cell]
    tasks: dict[str, dict] = {}
    for task in dict.fromkeys(cell["task"] for cell in cells if cell["method"] == "nlac"):
        arms = {}
        for method in METHODS:
            found = [cell for cell in cells if (cell["task"], cell["method"]) == (task, method)]
            found.sort(key=lambda cell: cell["seed"])
            if found:
                costs = mean_costs(found)
                arms[method] = {"decoded": over_cells(found), "costs": costs}
        rivals = [name for name in RIVALS if name in arms and "nlac" in arms]
        tasks[task] = {"arms": arms, "verdicts": {rival: compare(arms, rival) for rival in rivals}}
    return {"tasks": tasks, "machines": reporting.machines(cells)}


def text(report: dict) -> str:
    """Write the tables and verdicts."""
    parts = []
    for task, figures in report["tasks"].items():
        arms = figures["arms"]
        for instances, words in NAMES.items():
            settings = [of for of in next(iter(arms.values()))["decoded"] if of["instances"] == instances]
            names = [f"{of['temperature']:g}" + (f", min_p {of['min_p']:g}" if of["min_p"] else "") for of in settings]
            rows = [
                [
                    *(label(method), str(len(arm["costs"]["seconds"]["seeds"]))),
                    *(rate(at(arm["decoded"], of["temperature"], instances, of["min_p"])) for of in settings),
                ]
                for method, arm in arms.items()
            ]
            parts += [f"{task_label(task)}, {words}, success at each temperature:", ""]
            parts += [reporting.table(["method", "seeds", *names], rows), ""]
        parts += [f"{task_label(task)}, mean costs of training:", ""]
        parts += [cost_table({label(method): arm["costs"] for method, arm in arms.items()}), ""]
        for sentence in sentences(task, figures):
            parts += [sentence, ""]
    return "\n".join(parts).rstrip()


def sentences(task: str, figures: dict) -> list[str]:
    """Write the verdicts of a task."""
    found = []
    for rival, of in figures["verdicts"].items():
        by = ", ".join(f"{gap(value)} at {float(t):g}" for t, value in of["differences"].items())
        judged = f"The claim that the learned critic helps **{of['verdict']}**."
        if rival in SELF_DISTILLATIONS:
            judged = f"NLAC **{OF_OTHERS[of['verdict']]}**, with a fifth of its environment steps."
        found.append(f"{task_label(task)}, NLAC against {label(rival)}: {by}. {judged}")
    return found


def main():
    reporting.publish_cells(__doc__, FOLDERS, sharpening, text, "learning/figures/sharpening.py")


if __name__ == "__main__":
    main()
