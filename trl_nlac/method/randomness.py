# SPDX-License-Identifier: Apache-2.0

"""Random numbers of a thread: what is chosen at random does not depend on what other threads draw."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch


_rng: ContextVar[torch.Generator | None] = ContextVar("rng", default=None)


def random_generator() -> torch.Generator | None:
    """Return what random choices are drawn from in this thread: `None` is torch's global generator."""
    return _rng.get()


def draw_seeds(number: int) -> list[int]:
    """Draw seeds of answers."""
    return torch.randint(2**62, (number,), generator=random_generator()).tolist()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random choices from a generator of its own within this context, in this thread."""
    token = _rng.set(torch.Generator().manual_seed(seed))
    try:
        yield
    finally:
        _rng.reset(token)
