# SPDX-License-Identifier: Apache-2.0

"""What is counted while roles answer: metrics, and tokens by kind and role."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Tally:
    """
    Metrics and tokens of answers. Threads can add to them at the same time. Tokens are counted by kind and role, such
    as `"generated/backup"`: those of answers, sampled again or not (`generated`), those of their prompts
    (`prefilled`), and how many of the latter were in a cache (`cached`, where the generator can say). Acting in an
    environment is the role `act`, and scoring verdicts `score`.
    """

    def __init__(self):
        self.metrics: dict[str, list[float]] = defaultdict(list)  # values since `take`
        self.tokens: Counter[str] = Counter()
        self.num_calls = 0  # answers that were generated, those within `uncounted` too
        self._lock = threading.Lock()

    @property
    def num_generated_tokens(self) -> int:
        """Number of tokens of all answers so far."""
        with self._lock:
            return sum(number for name, number in self.tokens.items() if name.startswith("generated/"))

    def note(self, name: str, values: list[float]) -> None:
        """Add values to a metric."""
        with self._lock:
            self.metrics[name] += values

    def count(self, role: str, **tokens: int) -> None:
        """Add to the tokens of a role, by kind."""
        with self._lock:
            self.num_calls += "generated" in tokens
            for kind, number in tokens.items():
                self.tokens[f"{kind}/{role}"] += number

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Leave what is noted within this context out of the metrics."""
        with self._lock:
            metrics = {name: list(values) for name, values in self.metrics.items()}
        try:
            yield
        finally:
            with self._lock:
                self.metrics.clear()
                self.metrics.update(metrics)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave what is counted within this context out of the tokens."""
        tokens = Counter(self.tokens)
        try:
            yield
        finally:
            self.tokens = tokens

    def absorb(self, other: "Tally") -> None:
        """Take over the metrics and the tokens of another thread's tally."""
        with other._lock:
            metrics, other.metrics = other.metrics, defaultdict(list)
            tokens, other.tokens = other.tokens, Counter()
        with self._lock:
            for name, values in metrics.items():
                self.metrics[name] += values
            self.tokens.update(tokens)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"metrics": dict(self.metrics), "tokens": dict(self.tokens)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`Tally.state_dict`]."""
        self.metrics, self.tokens = defaultdict(list, state["metrics"]), Counter(state["tokens"])

    def take(self) -> dict[str, float]:
        """Return the means of the metrics since the last call."""
        with self._lock:
            taken, self.metrics = self.metrics, defaultdict(list)
        return {name: sum(values) / len(values) for name, values in taken.items() if values}
