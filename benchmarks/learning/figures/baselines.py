# SPDX-License-Identifier: Apache-2.0

"""
NLAC against baselines that are stronger than those of the main table: GRPO and RFT that train four times as long, for
more gradient steps than NLAC, and self-distillation with feedback.

python -m benchmarks.learning.figures.baselines --json benchmarks/results/learning_baselines.json \\
    --page docs/source/results_baselines.md

The cells:

python -m benchmarks.learning.run --methods grpo_long rft_long self_distillation \\
    --tasks service_desk_told service_desk_hinted service_desk_noisy service_desk_delayed \\
    --cells benchmarks/results/learning_baselines
python -m benchmarks.learning.run --methods rft_unanchored rft_unanchored_long self_distillation_reverse \\
    --tasks service_desk_told service_desk_hinted service_desk_noisy service_desk_delayed \\
    --temperatures 1 0.5 0 --cells benchmarks/results/learning_baselines
python -m benchmarks.learning.run --methods scalar_five --tasks service_desk_told service_desk_noisy \\
    --temperatures 1 0.5 0 --cells benchmarks/results/learning_baselines
"""

from statistics import mean

from benchmarks import reporting
from benchmarks.learning.figures.correction import add_corrected
from benchmarks.learning.figures.costs import LEVEL
from benchmarks.learning.figures.seeds import LEAST_SEEDS, difference, of_cells
from benchmarks.learning.figures.summary import CELLS, RESULTS, final_success, mean_costs, measured, reach
from benchmarks.learning.figures.table import STRONGER, cost_table, gap, label, number, rate, task_label
from benchmarks.learning.methods.settings import OF_BASELINES


FOLDERS = (CELLS, RESULTS / "learning_baselines")
METHODS = ("nlac", "hindsight", *dict.fromkeys(OF_BASELINES.values()), *STRONGER)
FLAT = 0.02
NORMAL_95 = 1.96
REACH_NAMES = (f"environment steps to {LEVEL} of the oracle's success, median", "generated tokens to it")
ABOVE, NOT_APART, BELOW = "above", "not told apart from", "below"
UNJUDGED = f"not judged yet, it needs {LEAST_SEEDS} seeds of both, against"


def by_fifth(cell: dict) -> dict[int, list[dict]]:
    """Return the evaluations of a run by the fifth of its environment steps, 0 to 4, and 5 for its end."""
    total = cell["points"][-1]["environment_steps"]
    fifths: dict[int, list[dict]] = {}
    for point in cell["points"]:
        fifths.setdefault(int(5 * point["environment_steps"] / total), []).append(point)
    return fifths


def rise(cell: dict) -> float | None:
    """
    Return how much success rises from the third fifth of a run's environment steps to the fourth, while the learning
    rate is constant, or `None` where one of them has no evaluation.
    """
    fifths = by_fifth(cell)
    if not {2, 3} <= fifths.keys():
        return None
    third, fourth = (mean(measured(point, "success") for point in fifths[fifth]) for fifth in (2, 3))
    return fourth - third


def rise_error(cell: dict) -> float:
    """
    Return the standard error that [`rise`] has because an evaluation plays a sample of episodes, from the 95 %
    intervals of its evaluations.
    """
    fifths = by_fifth(cell)
    variance = 0.0
    for points in (fifths[2], fifths[3]):
        widths = [point["episode/success_rate_high"] - point["episode/success_rate_low"] for point in points]
        variance += sum((width / (2 * NORMAL_95)) ** 2 for width in widths) / len(points) ** 2
    return variance**0.5


def mean_rise(cells: list[dict]) -> dict | None:
    """
    Average [`rise`] over seeds. The interval is at least as wide as the sampled episodes of the evaluations make it:
    few seeds can agree by chance.
    """
    risen = of_cells(cells, rise)
    if risen is not None and risen["low"] is not None:
        counted = [cell for cell in cells if str(cell["seed"]) in risen["seeds"]]
        margin = NORMAL_95 * sum(rise_error(cell) ** 2 for cell in counted) ** 0.5 / len(counted)
        risen["low"] = round(min(risen["low"], risen["mean"] - margin), 4)
        risen["high"] = round(max(risen["high"], risen["mean"] + margin), 4)
    return risen


def figures(cells: list[dict]) -> dict:
    """Return the figures of a method on a task."""
    return {
        "final": of_cells(cells, final_success),
        "rise": mean_rise(cells),
        "reach": reach(cells, LEVEL * cells[0]["oracle_success"]),
        "costs": mean_costs(cells),
    }


def reach_words(reached: dict, num_seeds: int) -> list[str]:
    """Format what [`~learning.figures.summary.reach`] returns of so many seeds for the columns `REACH_NAMES`."""
    steps, tokens = (number(reached[cost]) for cost in ("environment_steps", "generated_tokens"))
    return [f"{steps} ({reached['num_seeds']} of {num_seeds})", tokens]


def verdict(compared: dict | None) -> str:
    """Judge the difference of two methods' final success, paired by seed, by its 95 % interval."""
    if compared is None or len(compared["seeds"]) < LEAST_SEEDS:
        return UNJUDGED
    if compared["low"] > 0:
        return ABOVE
    return BELOW if compared["high"] < 0 else NOT_APART


def judged(compared: dict | None) -> str:
    """Judge a difference as [`verdict`], and say what a correction for all comparisons of the page makes of it."""
    word = verdict(compared)
    if word not in (ABOVE, BELOW):
        return f"**{word}**"
    clear = "also after" if compared["p_holm"] < 0.05 else "but not after"
    return f"**{word}** ({clear} correction, p {compared['p_holm']:.2g})"


def slope(risen: dict | None) -> str:
    """Say of a method, `{}`, whether its curve still rises: whether the interval of [`rise`] is above zero."""
    if risen is not None and risen["low"] is not None:
        if risen["low"] > 0:
            return "{}'s curve is still rising"
        if risen["high"] <= FLAT:
            return "{}'s curve is flat"
    return "whether {}'s curve still rises cannot be told"


def baselines(cells: list[dict]) -> dict:
    """Return the figures of every method on every task that has a stronger baseline, and the verdicts."""
    tasks: dict[str, dict] = {}
    for task in dict.fromkeys(cell["task"] for cell in cells if cell["method"] in STRONGER):
        arms = {}
        for method in METHODS:
            found = [cell for cell in cells if (cell["task"], cell["method"]) == (task, method)]
            if found:
                arms[method] = figures(sorted(found, key=lambda cell: cell["seed"]))
        verdicts = {}
        for rival in [name for name in STRONGER if name in arms and "nlac" in arms]:
            compared = difference(arms["nlac"]["final"], arms[rival]["final"])
            verdicts[rival] = {"difference": compared, "verdict": verdict(compared)}
        tasks[task] = {"arms": arms, "verdicts": verdicts}
    add_corrected(
        {(task, rival): of["difference"] for task, found in tasks.items() for rival, of in found["verdicts"].items()}
    )
    return {"tasks": tasks, "machines": reporting.machines(cells)}


def text(report: dict) -> str:
    """Write the tables and verdicts."""
    parts = []
    for task, found in report["tasks"].items():
        arms = found["arms"]
        rows = [
            [
                *(label(method), str(len(arm["final"]["seeds"])), rate(arm["final"]), gap(arm["rise"])),
                *reach_words(arm["reach"], len(arm["final"]["seeds"])),
            ]
            for method, arm in arms.items()
        ]
        names = ["method", "seeds", "final success", "rise from the third fifth of the steps to the fourth"]
        names += REACH_NAMES
        parts += [f"{task_label(task)}:", "", reporting.table(names, rows), ""]
        parts += ["Mean costs of training:", "", cost_table({label(m): arm["costs"] for m, arm in arms.items()}), ""]
        for rival, of in found["verdicts"].items():
            parts += [
                f"NLAC is {judged(of['difference'])} {label(rival)}, by {gap(of['difference'])}; "
                f"{slope(arms[rival]['rise']).format(label(rival))}.",
                "",
            ]
    return "\n".join(parts).rstrip()


def main():
    reporting.publish_cells(__doc__, FOLDERS, baselines, text, "learning/figures/baselines.py")


if __name__ == "__main__":
    main()
