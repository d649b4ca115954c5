# SPDX-License-Identifier: Apache-2.0

"""The figures of the relay house over houses, the verdict, and their tables."""

from typing import Any

from benchmarks import reporting
from benchmarks.learning.figures.seeds import LEAST_SEEDS, difference, of_cells
from benchmarks.learning.figures.table import cost_table, gap, rate


LABELS = {
    "explicit": "NLAC, explicit bootstrap",
    "forgetful": "NLAC, explicit bootstrap, states without history",
    "forgetful_monte_carlo": "NLAC, Monte Carlo, states without history",
    "candidates": "NLAC, explicit bootstrap, four candidates",
    "rehearsed": "NLAC, explicit bootstrap, rehearsed refinements",
    "distilled": "NLAC, explicit bootstrap, distilled policy",
    "implicit": "NLAC, implicit bootstrap",
    "monte_carlo": "NLAC, Monte Carlo",
    "hindsight": "Hindsight",
    "sft": "SFT on successes",
    "scalar": "Scalar actor-critic",
    "scalar_forgetful": "Scalar actor-critic, states without history",
}
PHASES = {
    "logs": "From logs alone, {steps:,} gradient steps",
    "plays": "Playing {steps:,} environment steps, beginning with the logs",
}
# About which doors the critic is asked: where the floor is the start, where it was reached, and the targets it writes.
ASKED = ("critic", "reached", "targets")
# Bootstrapping and Monte Carlo, with the same states.
PAIRS = {"with history": ("explicit", "monte_carlo"), "without history": ("forgetful", "forgetful_monte_carlo")}
# Methods without histories, which are compared with NLAC without them.
WITHOUT_HISTORY = ("forgetful_monte_carlo", "scalar_forgetful")
# What counts, decided before the runs.
LEARNED, SUPPORTED_BY, REFUTED_BY = 0.95, 0.3, 0.1
UNTESTED = "not tested: the first floor was not learned by both"
SUPPORTED, REFUTED, BETWEEN = "supported", "refuted", "neither supported nor refuted"
LABELS_RIGHT = "labels right, policy flat: the backup is fine, refinement is not"


def verdict(explicit: dict, monte_carlo: dict) -> dict[str, Any]:
    """
    Judge whether bootstrapping beats Monte Carlo, by sampled success with differences paired by house.

    It is *supported* if the difference on the second floor is at least 0.3, its 95 % interval is above zero, and the
    third floor's is no smaller; *refuted* if the second floor's is at most 0.1 or its interval includes zero. If then
    the targets of right doors on the second floor differ by at least 0.3 with an interval above zero, labels are right
    and the policy is flat. None of it is tested unless both arms win on the first floor in 0.95 of the episodes.
    """
    floors = list(explicit["sampled"])
    gaps = {floor: difference(explicit["sampled"][floor], monte_carlo["sampled"][floor]) for floor in floors}
    targets = difference(explicit["targets"]["floor_2"]["right"], monte_carlo["targets"]["floor_2"]["right"])
    found = {"differences": gaps, "targets": targets}
    second, third = gaps["floor_2"], gaps.get("floor_3", gaps["floor_2"])
    if min(arm["sampled"]["floor_1"]["mean"] for arm in (explicit, monte_carlo)) < LEARNED:
        return {**found, "verdict": UNTESTED}
    if second is None or len(second["seeds"]) < LEAST_SEEDS:
        return {**found, "verdict": f"not judged yet: it needs {LEAST_SEEDS} houses"}
    if second["mean"] >= SUPPORTED_BY and second["low"] > 0 and third["mean"] >= second["mean"]:
        return {**found, "verdict": SUPPORTED}
    if second["mean"] <= REFUTED_BY or second["low"] <= 0:
        right = targets["mean"] >= SUPPORTED_BY and targets["low"] > 0
        return {**found, "verdict": LABELS_RIGHT if right else REFUTED}
    return {**found, "verdict": BETWEEN}


def figures(cells: list[dict]) -> dict[str, Any]:
    """Return the figures of one method over houses."""
    arm: dict[str, Any] = {
        setting: {
            floor: of_cells(cells, lambda cell, s=setting, f=floor: cell["success"][s][f])
            for floor in cells[0]["success"][setting]
        }
        for setting in cells[0]["success"]
    }
    if "critic" in cells[0]:
        for name in ASKED:
            arm[name] = {
                floor: {
                    kind: of_cells(cells, lambda cell, n=name, f=floor, k=kind: cell["critic"][f][k].get(n))
                    for kind in kinds
                }
                for floor, kinds in cells[0]["critic"].items()
            }
    if "costs" in cells[0]:
        arm["costs"] = {cost: of_cells(cells, lambda cell, c=cost: cell["costs"][c]) for cost in cells[0]["costs"]}
    return arm


def summarize(cells: list[dict]) -> dict[str, Any]:
    """Return the figures of every method, in each phase, with each number of steps and floors, and the verdicts."""
    phases: dict[str, dict] = {}
    kinds = ("plays", "steps", "floors")
    for kind in sorted({tuple(cell[name] for name in kinds) for cell in cells}):
        plays, steps, floors = kind
        chosen = [cell for cell in cells if tuple(cell[name] for name in kinds) == kind]
        arms = {
            name: figures(sorted((c for c in chosen if c["method"] == name), key=lambda cell: cell["seed"]))
            for name in LABELS
            if any(cell["method"] == name for cell in chosen)
        }
        for name, arm in arms.items():
            ours = "forgetful" if name in WITHOUT_HISTORY else "explicit"
            if ours in arms and ours != name:
                arm["explicit_minus_it"] = {
                    floor: difference(arms[ours]["sampled"][floor], theirs) for floor, theirs in arm["sampled"].items()
                }
        phase = {**dict(zip(kinds, kind, strict=True)), "arms": arms}
        if not plays:
            phase["verdicts"] = {
                states: verdict(*map(arms.get, pair)) for states, pair in PAIRS.items() if arms.keys() >= {*pair}
            }
        phases[f"{'plays' if plays else 'logs'}_{steps}_{floors}"] = phase
    return {"phases": phases, "machines": reporting.machines(cells)}


def text(report: dict) -> str:
    """Write the tables and verdicts."""
    parts = []
    for phase in report["phases"].values():
        arms = phase["arms"]
        title = PHASES["plays" if phase["plays"] else "logs"].format(steps=phase["steps"])
        floors = [f"floor {i + 1}" for i in range(phase["floors"])]
        rows = [
            [
                *(LABELS[name], str(len(arm["sampled"]["floor_1"]["seeds"]))),
                *(rate(of) for setting in ("sampled", "greedy") for of in arm[setting].values()),
            ]
            for name, arm in arms.items()
        ]
        parts += [f"{title}, success on the floors of {phase['floors']}:", ""]
        parts += [reporting.table(["method", "houses", *floors, *(f"{f}, greedy" for f in floors)], rows), ""]
        compared = {name: arm["explicit_minus_it"] for name, arm in arms.items() if "explicit_minus_it" in arm}
        if compared:
            parts += ["NLAC with explicit bootstrap and history minus each method, paired by house; Monte Carlo and"]
            parts += ["the scalar critic without history are compared with NLAC without history:", ""]
            rows = [[LABELS[name], *map(gap, of.values())] for name, of in compared.items()]
            parts += [reporting.table(["method", *floors], rows), ""]
        chosen = {name: arm["best"] for name, arm in arms.items() if "best" in arm}
        if chosen:
            parts += ["Success where every action is the best of four by the critic's verdict scores:", ""]
            rows = [[LABELS[name], *(rate(of) for of in best.values())] for name, best in chosen.items()]
            parts += [reporting.table(["method", *floors], rows), ""]
        judged = {name: arm for name, arm in arms.items() if "critic" in arm}
        if judged:
            rows = [
                [LABELS[name]]
                + [
                    " / ".join(f"{kinds[kind]['mean']:.2f}" for kind in ("right", "wrong")) if kinds["right"] else "–"
                    for source in ASKED
                    for kinds in arm[source].values()
                ]
                for name, arm in judged.items()
            ]
            names = [f"{source}, {floor}" for source in ASKED for floor in floors]
            parts += ['How often "Yes" is said of right / wrong doors:', ""]
            parts += [reporting.table(["method", *names], rows), ""]
        costed = {LABELS[name]: arm["costs"] for name, arm in arms.items() if "costs" in arm}
        if costed:
            parts += ["Mean costs of training:", "", cost_table(costed), ""]
        for states, found in phase.get("verdicts", {}).items():
            by = ", ".join(f"{gap(of)} on {floor.replace('_', ' ')}" for floor, of in found["differences"].items())
            parts += [
                f"Explicit bootstrap against Monte Carlo, {states}: {by}; targets of right doors on floor 2 "
                f"{gap(found['targets'])}. Bootstrapping beats Monte Carlo: **{found['verdict']}**.",
                "",
            ]
    return "\n".join(parts).rstrip()
