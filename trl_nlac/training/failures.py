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

"""When training makes no sense any more."""

from collections import deque
from pathlib import Path

from ..types import Episode


class TrainingStopped(RuntimeError):
    """Training cannot go on. What was learned until then is saved before this reaches the caller."""


class FailureMonitor:
    """
    Counts failed environments among the last episodes.

    Args:
        max_rate (`float`):
            Share of them above which the run should stop.
        window (`int`):
            Number of last episodes. With fewer, nothing is decided yet.
    """

    def __init__(self, max_rate: float, window: int):
        self.max_rate = max_rate
        self.failed: deque[bool] = deque(maxlen=window)

    def update(self, failures: list[bool]) -> None:
        """Count more episodes, 1 for each whose environment failed."""
        self.failed.extend(failures)

    @property
    def rate(self) -> float:
        """Share of failures among the last episodes."""
        return sum(self.failed) / len(self.failed)

    @property
    def is_exceeded(self) -> bool:
        """Whether the run should stop."""
        return len(self.failed) == self.failed.maxlen and self.rate > self.max_rate

    def report(self, checkpoint: Path, traceback: str) -> str:
        """Why the run stops, for an error."""
        return (
            f"The environment failed in {self.rate:.0%} of the last {len(self.failed)} episodes; "
            f"`max_environment_failure_rate` is {self.max_rate}. Training stops, {checkpoint} is saved. The last failure on "
            f"this process:\n{traceback or 'none'}"
        )


def nothing_played(episodes: list[Episode]) -> str:
    """Why there is nothing to train on, for an error."""
    return (
        f"None of {len(episodes)} episodes had a single turn, so there is nothing to train on. The first ended with: "
        f"{episodes[0].failure}."
    )
