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
