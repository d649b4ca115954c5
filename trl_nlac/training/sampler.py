# SPDX-License-Identifier: Apache-2.0

"""The order in which tasks are played."""

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler


@dataclass(eq=False)
class IterationSampler(Sampler[int]):
    """
    Iterates over the tasks in rounds of `episodes_per_iteration`. The training loop takes one batch from the data
    loader for every micro-batch, but tasks are played only at the start of an iteration, so each round is repeated
    `steps_per_iteration` times. The last round of an epoch is filled up with the epoch's first tasks. Each epoch has
    its own order, by its number from `epoch`: a callable, because the wrapper that skips the batches of a resumed
    epoch can hide the sampler from callers of `set_epoch`.
    """

    dataset: Sized
    episodes_per_iteration: int  # over all processes
    steps_per_iteration: int  # micro-batches
    shuffle: bool
    seed: int
    epoch: Callable[[], int] = int

    def __post_init__(self):
        self.num_tasks = len(self.dataset)
        self.num_rounds = -(-self.num_tasks // self.episodes_per_iteration)

    def __len__(self) -> int:
        return self.num_rounds * self.episodes_per_iteration * self.steps_per_iteration

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.num_tasks))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch())
            order = torch.randperm(self.num_tasks, generator=generator).tolist()
        for start in range(0, self.num_rounds * self.episodes_per_iteration, self.episodes_per_iteration):
            tasks = [order[i % self.num_tasks] for i in range(start, start + self.episodes_per_iteration)]
            yield from tasks * self.steps_per_iteration
