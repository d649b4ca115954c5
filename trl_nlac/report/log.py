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

"""Reading `training_log.jsonl`: what a run has logged so far."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from ..records.log_history import find_evaluations


@dataclass(frozen=True)
class TrainingLog:
    """
    What a run has logged, oldest first. Values that are not finite are left out.

    Args:
        training (`list[dict[str, float]]`):
            Logs of training steps: metrics by name, and `step`.
        evaluations (`dict[str, list[dict[str, float]]]`):
            Logs of evaluations, without the prefix of their metrics, by the name of the dataset; it is empty where there
            is only one.
        seconds (`float`, *optional*):
            How long training took. `None` if it has not ended.
        num_unreadable (`int`):
            Number of lines that are not JSON, such as one that is being written.
    """

    training: list[dict[str, float]]
    evaluations: dict[str, list[dict[str, float]]]
    seconds: float | None
    num_unreadable: int


def read_log(path: Path) -> TrainingLog:
    """The log of a run, empty if there is no file."""
    rows, training = [], []
    seconds, num_unreadable = None, 0
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            logged = json.loads(line)
        except ValueError:
            num_unreadable += 1
            continue
        row = {name: value for name, value in logged.items() if _is_finite(value)}
        rows.append(row)
        if "loss" in logged:
            training.append(row)
            seconds = None  # the run was resumed after its end
        seconds = row.get("train_runtime", seconds)
    return TrainingLog(training, find_evaluations(rows), seconds, num_unreadable)


def _is_finite(value) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
