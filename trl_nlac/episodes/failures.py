# SPDX-License-Identifier: Apache-2.0

"""When environments fail, hang or play nothing so often that training must stop."""

from collections import deque
from typing import Any

from ..terminal import printable
from ..types import Episode


NUM_WATCHED = 100  # last episodes, over all processes; with fewer, training continues
MOST_EMPTY, MOST_EMPTY_OF_ALL = 10, 2  # one coroutine that blocks can hold up all others once
MAX_LEFT_BEHIND = 1000  # on a process


class FailureMonitor:
    """Count failed environments among the last episodes. Training stops above a share of `max_rate`."""

    def __init__(self, max_rate: float):
        self.max_rate = max_rate
        self.failed: deque[bool] = deque(maxlen=NUM_WATCHED)

    def update(self, failures: list[bool]) -> None:
        """Add episodes: whether the environment of each failed."""
        self.failed.extend(failures)

    @property
    def rate(self) -> float:
        """Share of failures among the last episodes."""
        return sum(self.failed) / len(self.failed)

    @property
    def is_exceeded(self) -> bool:
        """Whether training must stop."""
        return len(self.failed) == NUM_WATCHED and self.rate > self.max_rate

    def report(self, traceback: str) -> str:
        """Explain, for an error, why training stops."""
        return (
            f"The environment failed in {self.rate:.0%} of the last {len(self.failed)} episodes; "
            f"`max_environment_failure_rate` is {self.max_rate}. The last failure on this process:\n"
            f"{printable(traceback) or 'none'}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. A run that stopped because of failures begins to count anew."""
        return {"failed": [] if self.is_exceeded else list(self.failed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`~FailureMonitor.state_dict`]."""
        self.failed.clear()
        self.update(state["failed"])


def check_played(empty: list[tuple[int, str]]) -> None:
    """Raise a `RuntimeError` if too often in a row, `empty` times and why, no turn was played on a process."""
    number, reason = max(empty)
    if number >= MOST_EMPTY or min(empty)[0] >= MOST_EMPTY_OF_ALL:
        raise RuntimeError(reason)


def nothing_played(episodes: list[Episode]) -> str:
    """Explain, for an error, why there is nothing to train on. The episodes are those of this process."""
    end = printable(str(episodes[0].failure)) if episodes else "no episode of this process"
    return (
        f"None of {len(episodes)} episodes had a single turn, so there is nothing to train on. The first ended with: "
        f"{end}. Check the environment, and whether it can play the rows of `train_dataset`."
    )


def too_many_hang(number: int) -> str:
    """Explain, for an error, why training stops although few environments fail."""
    return (
        f"{number} environments took longer than `environment_timeout` and still hang, in threads that cannot be "
        "ended. Resume in a new process, which has none, and limit the time of what hangs in the environment itself."
    )
