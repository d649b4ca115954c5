# SPDX-License-Identifier: Apache-2.0

"""Episodes and audited training samples, prepared for the page."""

import math
from typing import Any


MAX_CHARACTERS = 4000  # of one text; a chain of thought can have a hundred times as many
_EPISODE_COLUMNS = set(
    "step environment_steps process episode task prompt turns return success terminated truncated failure".split()
)
_TURN_COLUMNS = "observation action next_observation reward".split()
_SAMPLE_COLUMNS = (  # of an audited sample, in addition to its turn
    "step critique verdict verdict_score target target_verdict attempt attempt_critique attempt_verdict "
    "refined_action critic_loss policy_loss priority"
).split()

Row = dict[str, Any]


def played_episode(row: Row, split: str, dataset: str, samples: list[Row]) -> Row:
    """Prepare a row of a file of completions, of the `split` "train" or "eval", with its audited samples."""
    # A failed environment does not prove the critic right or wrong.
    success = row["success"] if row["failure"] is None else None
    turns = {}
    for number, turn in enumerate(row["turns"]):
        wrong = None not in (success, turn["verdict"]) and turn["verdict"] != success
        turns[number] = {**_known(turn), "wrong": wrong, "samples": []}
    return {
        **_known(row, "step environment_steps process task prompt return failure".split()),
        "split": split,
        **_known({"dataset": dataset or None, "extra": _extra(row)}),
        "number": row["episode"],
        "outcome": _outcome(row),
        **_turns(turns, samples),
    }


def audited_episode(samples: list[Row]) -> Row:
    """Prepare an episode of which only audited samples were recorded."""
    first = samples[0]
    return {
        **_known(first, "step environment_steps process task return".split()),
        "split": "train",
        "number": first["episode"],
        "outcome": "unknown",
        **_turns({}, samples),
    }


def _outcome(row: Row) -> str:
    if row["failure"] is not None:
        return "broken"
    if row["success"]:
        return "success"
    return "cut" if row["truncated"] else "failure"


def _turns(turns: dict[int, Row], samples: list[Row]) -> Row:
    """Return the turns of an episode with their audited samples, and the values for filters."""
    for sample in samples:
        turn = turns.setdefault(sample["turn"], {**_known(sample, _TURN_COLUMNS), "wrong": False, "samples": []})
        verdicts = (sample["verdict"], sample["target_verdict"])
        wrong = None not in verdicts and verdicts[0] != verdicts[1]
        turn["samples"].append({**_known(sample, _SAMPLE_COLUMNS), "wrong": wrong})
    listed = [{"number": number, **turn} for number, turn in sorted(turns.items())]
    wrong = any(turn["wrong"] or any(sample["wrong"] for sample in turn["samples"]) for turn in listed)
    return {"turns": listed, "wrong": wrong, "audited": bool(samples)}


def _extra(row: Row) -> dict[str, str] | None:
    """Return the columns of reward functions."""
    extra = {name: value for name, value in row.items() if name not in _EPISODE_COLUMNS and value is not None}
    texts = {name: f"{value:.5g}" if isinstance(value, float) else str(value) for name, value in extra.items()}
    return {name: clipped(text) for name, text in texts.items()} or None


def _known(row: Row, names: list[str] | None = None) -> Row:
    """Return the known values of a row, with long texts clipped."""
    found = {name: row[name] for name in names or row}
    return {
        name: clipped(value) if isinstance(value, str) else value
        for name, value in found.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def clipped(text: str) -> str:
    """Cut the middle out of a text with more than `MAX_CHARACTERS`."""
    left_out = len(text) - MAX_CHARACTERS
    if left_out <= 0:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[… {left_out:,} characters omitted …]\n{text[-half:]}"
