# SPDX-License-Identifier: Apache-2.0

"""The log of a run: `training_log.jsonl`, and the evaluations in it."""

import json
import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .folder import END_OF_TRAINING, SECONDS


logger = logging.getLogger(__name__)

MAX_LINES = 20  # whose numbers are named
_OF_FUNCTION = re.compile(r"eval_(?:.+_)?rewards/.+/(?:mean|std)")  # whose name may look like that of a group
_EVALUATION = re.compile(r"eval_(?:(?P<dataset>.+)_)?(?P<metric>(?:critic|environment|episode|oracle)/.+)")


def find_evaluations(logs: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Find the evaluations in logs, oldest first, by dataset (empty if it is the only one), without their prefix."""
    evaluations = defaultdict(list)
    for log in logs:
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, value in log.items():
            match = _EVALUATION.fullmatch(name)
            if match and not _OF_FUNCTION.fullmatch(name):
                found[match["dataset"] or ""][match["metric"]] = value
        for dataset, metrics in found.items():
            evaluations[dataset].append({"step": log["step"], **metrics})
    return dict(evaluations)


def first_and_last(logs: Iterable[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """
    Find the first and the last evaluation on each dataset, or the only one: name of the dataset, name of the
    evaluation, and its metrics. Evaluations in which no episode was played, because the environment always failed, are
    left out.
    """
    chosen = []
    for dataset, found in find_evaluations(logs).items():
        played = [log for log in found if "episode/success_rate" in log]
        prefix = f"{dataset}, " if dataset else ""
        ends = [("first", played[0]), ("last", played[-1])] if len(played) > 1 else [("only", log) for log in played]
        chosen += [(dataset, f"{prefix}{name}", log) for name, log in ends]
    return chosen


@dataclass(frozen=True)
class TrainingLog:
    """The logs of a run, oldest first. Values that are not finite are left out."""

    training: list[dict[str, float]]  # logs of training steps: metrics by name, and `step`
    # logs of evaluations, without the prefix of their metrics, by the name of the dataset, which is empty if there is
    # only one
    evaluations: dict[str, list[dict[str, float]]]
    # duration of training, over all sessions of the run. `None` if the last of them has not ended.
    seconds: float | None
    unreadable: list[int]  # numbers of the lines, from 1, that are no log: damaged ones, or one that is being written


def read_log(path: Path) -> TrainingLog:
    """Read the log of a run; it is empty if there is no file."""
    rows, training = [], []
    seconds, has_ended, unreadable = 0.0, False, []
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.is_file() else [], start=1):
        if not line.strip():
            continue
        try:
            logged = json.loads(line)
            # An integer can be too large to tell.
            row = {name: n for name, n in logged.items() if isinstance(n, int | float) and math.isfinite(n)}
            row["step"] = int(row["step"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            unreadable.append(number)
            continue
        rows.append(row)
        if "loss" in logged:
            training.append(row)
            has_ended = False  # the run was resumed after its end
        if END_OF_TRAINING in logged:
            seconds = row.get(SECONDS, seconds + row.get("train_runtime", 0.0))  # logs before 0.3 have sessions alone
            has_ended = True
    if unreadable:
        first, more = ", ".join(map(str, unreadable[:MAX_LINES])), len(unreadable) - MAX_LINES
        others = f" and {more:,} more" if more > 0 else ""
        logger.warning(f"{path}: these lines are no logs and are left out: {first}{others}.")
    return TrainingLog(training, find_evaluations(rows), seconds if has_ended else None, unreadable)
