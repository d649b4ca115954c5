# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Finding evaluations in what a run has logged."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any


_EVALUATION = re.compile(r"eval_(?:(?P<dataset>.+)_)?(?P<metric>(?:critic|environment|episode|oracle)/.+)")


def find_evaluations(logs: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """
    Evaluations among the logs of a run, without the prefix of their metrics.

    Args:
        logs (`Iterable[dict[str, Any]]`):
            As `trainer.state.log_history`: metrics by name, and `step`.

    Returns:
        `dict[str, list[dict[str, Any]]]`: metrics and `step` of each, oldest first, by the name of the dataset; it is empty where
        there is only one.
    """
    evaluations = defaultdict(list)
    for log in logs:
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, value in log.items():
            match = _EVALUATION.fullmatch(name)
            if match:
                found[match["dataset"] or ""][match["metric"]] = value
        for dataset, metrics in found.items():
            evaluations[dataset].append({"step": log["step"], **metrics})
    return dict(evaluations)


def first_and_last(logs: Iterable[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """
    The first and the last evaluation on each dataset: name of the dataset, what to call the evaluation, and its metrics. Those
    in which no episode was played, because the environment always failed, are left out.
    """
    chosen = []
    for dataset, found in find_evaluations(logs).items():
        played = [log for log in found if "episode/success_rate" in log]
        prefix = f"{dataset}, " if dataset else ""
        chosen += [(dataset, f"{prefix}{name}", played[i]) for name, i in (("first", 0), ("last", -1)) if played]
    return chosen
