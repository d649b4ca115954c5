# SPDX-License-Identifier: Apache-2.0

"""The claims of the learning benchmark, checked against its summary."""

from collections.abc import Sequence

from benchmarks.learning.figures.seeds import ratio


HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "not measured yet"
HOLDS_IN_THE_MEAN = "holds in the mean only, the intervals touch"
FACTOR_NOT_SHOWN = "holds in the mean, the factor is not shown"


def contest(summary: dict, task: str, baselines: Sequence[str]) -> tuple[dict, list[str], str] | None:
    """Return the figures of the methods, NLAC's settings and the best baseline; `None` if one is not measured."""
    figures = summary["tasks"].get(task, {"methods": {}})["methods"]
    ours = [method for method in ("nlac", *summary["settings"]) if method in figures]
    if not ours or not figures.keys() >= set(baselines):
        return None
    return figures, ours, best_final(figures, baselines)


def best_final(figures: dict, names: Sequence[str]) -> str:
    """Return the method with the highest mean final success, of equal ones the one with the fewest steps."""
    return max(names, key=lambda name: (figures[name]["final"]["mean"], -figures[name]["spent"]["environment_steps"]))


def fewer_steps(summary: dict, task: str, share: float = 0.2) -> dict:
    """
    Check whether NLAC has the mean final success of the best of GRPO and RFT with at most this share of its
    environment steps: at the last point of NLAC's mean curve within them. The verdict depends on whether the 95 %
    intervals touch. `steps_to_it` are the steps at which a mean curve first had that success.
    """
    found = contest(summary, task, ("grpo", "rft"))
    if found is None:
        return {"verdict": UNKNOWN}
    figures, names, best = found
    final, steps = figures[best]["final"], figures[best]["spent"]["environment_steps"]
    success = {name: final[name] for name in ("mean", "low", "high")}
    lines = {name: _points(summary["tasks"][task]["curves"][name]["environment_steps"]) for name in (*names, best)}
    reached = {name: [point for point in lines[name] if point["steps"] <= share * steps][-1] for name in names}
    chosen = max(names, key=lambda name: reached[name]["success"]["mean"])
    first = {
        name: next((point["steps"] for point in lines[name] if point["success"]["mean"] >= success["mean"]), last)
        # The baseline has it at the latest in its final evaluation, which has more episodes than the others.
        for name, last in ((chosen, None), (best, steps))
    }
    ours = reached[chosen]["success"]
    verdict = FAILS
    if ours["mean"] >= success["mean"] and ours["mean"] > 0:
        verdict = HOLDS_IN_THE_MEAN if overlap(ours, success) else HOLDS
    return {
        "verdict": verdict,
        "num_seeds": min(figures[name]["num_seeds"] for name in (chosen, "grpo", "rft")),
        "share": share,
        "allowed_steps": share * steps,
        "nlac": {"method": chosen, **reached[chosen], "steps_to_it": first[chosen]},
        "baseline": {"method": best, "success": success, "steps": steps, "steps_to_it": first[best]},
    }


def overlap(high: dict, low: dict) -> bool:
    """Whether two intervals overlap. Missing intervals count as overlapping."""
    return high["low"] is None or low["high"] is None or high["low"] <= low["high"]


def _points(line: dict) -> list[dict]:
    """Return the points of a curve."""
    rows = zip(*(line[name] for name in ("environment_steps", "mean", "low", "high")), strict=True)
    return [{"success": {"mean": mean, "low": low, "high": high}, "steps": steps} for steps, mean, low, high in rows]


def higher_success(summary: dict, task: str, baselines: Sequence[str], factor: float = 1.0) -> dict:
    """
    Check whether NLAC's final success is `factor` times that of the best baseline, with 95 % intervals apart. A factor
    above 1 is shown if the interval of the ratio, paired by seed, does not begin below it.
    """
    found = contest(summary, task, baselines)
    if found is None:
        return {"verdict": UNKNOWN}
    figures, ours, best = found
    sides = {
        side: {"method": name, "success": figures[name]["final"], "steps": figures[name]["spent"]["environment_steps"]}
        for side, name in (("nlac", best_final(figures, ours)), ("baseline", best))
    }
    ours, theirs = (side["success"] for side in sides.values())
    if ours["low"] is None or theirs["high"] is None:
        return {"verdict": UNKNOWN}
    seed_ratio = ratio(ours, theirs)
    verdict = FAILS
    if ours["mean"] >= factor * theirs["mean"] and not overlap(ours, theirs):
        is_shown = factor == 1 or (seed_ratio is not None and seed_ratio["low"] >= factor)
        verdict = HOLDS if is_shown else FACTOR_NOT_SHOWN
    return {
        "verdict": verdict,
        "num_seeds": min(figures[name]["num_seeds"] for name in (sides["nlac"]["method"], *baselines)),
        "factor": factor,
        "ratio": round(ours["mean"] / theirs["mean"], 3) if theirs["mean"] else None,
        "seed_ratio": seed_ratio,
        **sides,
    }


def claims(summary: dict) -> list[dict]:
    """Return each claim with its verdict, one of those above, and its figures."""
    told, hinted, noisy, delayed = (f"service_desk_{variant}" for variant in ("told", "hinted", "noisy", "delayed"))
    complete = FAILS if summary["missing"] else HOLDS
    if not any(task["methods"] for task in summary["tasks"].values()):
        complete = UNKNOWN
    return [
        *({"claim": "fewer_steps", "task": task, **fewer_steps(summary, task)} for task in (told, hinted)),
        {
            "claim": "higher_success",
            "task": delayed,
            **higher_success(summary, delayed, ("grpo", "rft", "hindsight"), factor=1.3),
        },
        *(
            {"claim": "critic_adds", "task": task, **higher_success(summary, task, ("hindsight",))}
            for task in (told, hinted, noisy, delayed)
        ),
        *(
            {"claim": "beats_memory", "task": task, **higher_success(summary, task, ("base_remembering",))}
            for task in (told, hinted, noisy, delayed, "rooms")
        ),
        {"claim": "complete", "verdict": complete, "missing": summary["missing"]},
    ]
