# SPDX-License-Identifier: Apache-2.0

"""A guard that blocks actions, lets them pass, or abstains where the critic is unsure."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers.utils import cached_file

from ..types import Judgement
from ..written_files import write_json


GUARD_FILE = "nlac_guard.json"  # saved beside a model


@dataclass(frozen=True)
class Guard:
    """
    Thresholds of verdict scores, log P(Yes) - log P(No).

    Args:
        block_below (`float`, *optional*, defaults to `0.0`):
            Score below which an action is blocked.
        pass_above (`float`, *optional*, defaults to `0.0`):
            Score above which it passes. From one to the other the guard abstains.
        num_actions (`int`, *optional*, defaults to `0`):
            Number of logged actions by which they were calibrated; 0 for the defaults.
    """

    block_below: float = 0.0
    pass_above: float = 0.0
    num_actions: int = 0

    @classmethod
    def calibrated(
        cls,
        scores: Sequence[float],
        failures: Sequence[bool],
        max_false_blocks: float = 0.05,
        max_false_passes: float = 0.05,
    ) -> "Guard":
        """
        Choose thresholds by logged outcomes.

        Args:
            scores (`Sequence[float]`):
                Verdict score of each action.
            failures (`Sequence[bool]`):
                Whether the episode of each failed.
            max_false_blocks (`float`, *optional*, defaults to `0.05`):
                Largest share of the actions of successes that may be blocked.
            max_false_passes (`float`, *optional*, defaults to `0.05`):
                Largest share of the actions of failures that may pass.

        Raises:
            ValueError: If there is not at least one success and one failure.
        """
        good = sorted(score for score, failed in zip(scores, failures, strict=True) if not failed)
        bad = sorted(score for score, failed in zip(scores, failures, strict=True) if failed)
        if not good or not bad:
            actions = "1 action" if len(good) == 1 else f"{len(good)} actions"
            raise ValueError(
                f"calibration needs judged actions of both successes and failures, and has {actions} of successes and "
                f"{len(bad)} of failures."
            )
        block_below = good[min(int(max_false_blocks * len(good)), len(good) - 1)]
        pass_above = bad[max(len(bad) - 1 - int(max_false_passes * len(bad)), 0)]
        if pass_above < block_below:  # both shares can be kept without abstaining
            block_below = pass_above = (pass_above + block_below) / 2
        return cls(block_below, pass_above, len(scores))

    def decide(self, judgement: Judgement | None) -> str:
        """Decide on an action, by the critic's judgement; `"abstain"` where it could not be parsed."""
        if judgement is None:
            return "abstain"
        if judgement.verdict_score < self.block_below:
            return "block"
        return "pass" if judgement.verdict_score > self.pass_above else "abstain"

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the thresholds next to a model."""
        write_json(Path(directory, GUARD_FILE), asdict(self))

    @classmethod
    def from_pretrained(cls, model: str, revision: str | None = None) -> "Guard":
        """
        Load the thresholds saved with a model; the defaults if there are none.

        Args:
            model (`str`):
                Folder, or repository on the Hub.
            revision (`str`, *optional*):
                Branch, tag or commit on the Hub.

        Raises:
            ValueError: If the file is no such thresholds.
        """
        path = cached_file(model, GUARD_FILE, revision=revision, _raise_exceptions_for_missing_entries=False)
        if path is None:
            return cls()
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(float(values["block_below"]), float(values["pass_above"]), int(values["num_actions"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{path} has no thresholds of a guard ({type(error).__name__}: {error}).") from error


def outcomes(decisions: Sequence[str], failures: Sequence[bool]) -> dict[str, float]:
    """
    Measure a guard on logged actions: `recall`, the share of the actions of failures that are blocked; `false_blocks`,
    that of successes; `abstained`, the share of all; and the same shares `_of_decided`, without those on which it
    abstains.
    """
    pairs = list(zip(decisions, failures, strict=True))
    decided = [pair for pair in pairs if pair[0] != "abstain"]

    def blocked(pairs: list[tuple[str, bool]], of_failures: bool) -> float:
        of_kind = [decision for decision, failed in pairs if failed == of_failures]
        return of_kind.count("block") / len(of_kind) if of_kind else 0.0

    return {
        "recall": blocked(pairs, True),
        "false_blocks": blocked(pairs, False),
        "abstained": 1 - len(decided) / len(pairs) if pairs else 0.0,
        "recall_of_decided": blocked(decided, True),
        "false_blocks_of_decided": blocked(decided, False),
    }


def calibrate_by_half(
    judged: Sequence[tuple[int, Judgement | None, bool]],
    max_false_blocks: float = 0.05,
    max_false_passes: float = 0.05,
) -> tuple[Guard, dict[str, float], int]:
    """
    Calibrate a guard by half of the logged conversations, and measure it on the others. `judged` has for each action
    the number of its conversation, the critic's judgement, and whether the conversation failed. Return the guard, its
    [`outcomes`], and the number of actions that measured it. Raise a `ValueError` if there is not at least one success
    and one failure, with critiques that can be read, in the first half, or none of either in the second.
    """
    half_of = _split({number: failed for number, _, failed in judged})
    halves: tuple[list, list] = ([], [])
    for number, judgement, failed in judged:
        halves[half_of[number]].append((judgement, failed))
    chosen = [(judgement.verdict_score, failed) for judgement, failed in halves[0] if judgement is not None]
    scores, failures = [score for score, _ in chosen], [failed for _, failed in chosen]
    try:
        guard = Guard.calibrated(scores, failures, max_false_blocks, max_false_passes)
    except ValueError as error:
        raise ValueError(
            f"{error} These are in the half of the conversations that calibrates, without the actions whose critique "
            "cannot be read. Give more conversations of both outcomes."
        ) from error
    if not halves[1]:
        raise ValueError("One success and one failure calibrate, and none is left to measure. Give more logs.")
    decisions = [guard.decide(judgement) for judgement, _ in halves[1]]
    return guard, outcomes(decisions, [failed for _, failed in halves[1]]), len(halves[1])


def _split(failed: dict[int, bool]) -> dict[int, int]:
    """Split conversations into halves, 0 and 1, with as many failures in each, or one more in the first."""
    order = list(failed)
    random.Random(0).shuffle(order)
    halves = {}
    for outcome in (False, True):
        of_outcome = (number for number in order if failed[number] is outcome)
        halves.update({number: place % 2 for place, number in enumerate(of_outcome)})
    return halves
