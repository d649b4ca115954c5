# SPDX-License-Identifier: Apache-2.0
"""Checks of one iteration before a run is started: can it learn?"""

from dataclasses import dataclass

from .metrics import wilson_interval


OK, UNCLEAR, NO_GO = "ok", "unclear", "no-go"
# What is needed to start. A share of 0.8 loses a fifth of the samples, which the run can afford.
FORMAT_RATE, CLIPPED, TOO_LONG, FAILURES, FIDELITY, COMPLIANCE = 0.8, 0.2, 0.1, 0.1, 0.5, 0.5
AGREEMENT, ECHOED = 0.7, 0.3
TOLERANCE = 0.03  # of a success that was measured elsewhere

ROLES = ("policy", "critic", "backup", "refine", "successor", "correction")
_EXAMPLES = "Add worked examples to the prompts (`NLACPrompts.examples`), or use a stronger model."


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str  # the metric, as in the log of a run
    value: float
    needed: str
    verdict: str  # `"ok"`, `"unclear"` or `"no-go"`
    advice: str  # what to do if it is a no-go


def check_iteration(metrics: dict[str, float]) -> list[Check]:
    """Check the metrics of the first iteration, as in the log. Those that the run does not have are not checked."""
    shares = {f"{role}/format_rate": (FORMAT_RATE, _EXAMPLES) for role in ROLES}
    shares["health/backup_fidelity"] = (
        FIDELITY,
        "Targets do not tell what was observed. Leave the backup greedy, or add a worked example to the prompts.",
    )
    shares["health/refine_compliance"] = (
        COMPLIANCE,
        "Refined actions do not do as their critiques say, so the policy would learn nothing from them. Add a worked "
        'example to the prompts, or set `role_sampling={"refine": {"temperature": 0.0}}`.',
    )
    shares["health/verdict_agrees"] = (
        AGREEMENT,
        "Targets of last actions contradict the final score, so the critic would learn wrong verdicts. Use a stronger "
        "model, or check `success_threshold`.",
    )
    limits = {
        "health/prompt_echoed": (ECHOED, f"Answers repeat their question. {_EXAMPLES}"),
        "completions/clipped_ratio": (CLIPPED, "Answers are cut off. Raise `max_completion_length`."),
        "prompts/too_long_ratio": (TOO_LONG, "Questions are too long to be asked. Raise `max_prompt_length`."),
        "environment/failure_rate": (FAILURES, "Mend the environment, or raise `environment_timeout`."),
    }
    checks = []
    for name, (least, advice) in shares.items():
        if name in metrics:
            verdict = OK if metrics[name] >= least else NO_GO
            checks.append(Check(name, metrics[name], f"at least {least:g}", verdict, advice))
    for name, (most, advice) in limits.items():
        if name in metrics:
            verdict = OK if metrics[name] <= most else NO_GO
            checks.append(Check(name, metrics[name], f"at most {most:g}", verdict, advice))
    return checks


def check_refinement(plain: float, refined: float, number: int) -> Check:
    """Check that refined actions, as which the policy learns to act, succeed as often as its own."""
    (plain_low, _), (refined_low, refined_high) = (wilson_interval(rate * number, number) for rate in (plain, refined))
    if refined >= plain > 0 or refined_low > plain:
        verdict = OK
    else:
        verdict = NO_GO if refined_high < plain_low else UNCLEAR
    advice = "Refined actions fail more often than the policy's own. Read some of them: `trl-nlac play --refine 1`."
    return Check("refined/success_rate", refined, f"at least the policy's {plain:.2f}", verdict, advice)


def check_success(plain: float, number: int, expected: float) -> Check:
    """Check that the model starts at the success rate that somebody has measured."""
    low, high = wilson_interval(plain * number, number)
    if abs(plain - expected) <= TOLERANCE:
        verdict = OK
    else:
        verdict = UNCLEAR if low <= expected <= high else NO_GO
    advice = "Tasks, prompts, lengths or sampling differ from those of the measurement. Compare them."
    return Check("episode/success_rate", plain, f"{expected:g}, give or take {TOLERANCE:g}", verdict, advice)
