# SPDX-License-Identifier: Apache-2.0

"""Processes that generate together."""

from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from accelerate.utils import gather_object
from torch import nn
from tqdm.auto import tqdm

from .generator import Completion, Generator, Sampling


class _SharedGenerator:
    """Forwards to the generator through which processes generate together."""

    is_concurrent = False

    def __init__(self, generator: Generator):
        self.generator = generator

    @property
    def max_model_length(self) -> float:
        return self.generator.max_model_length

    def session(self, model: nn.Module) -> "contextmanager[None]":
        return self.generator.session(model)

    def take_metrics(self) -> dict[str, float]:
        return self.generator.take_metrics()


class JointGenerator(_SharedGenerator):
    """
    Let processes generate together, each the same number of completions, as sharded weights require, where every
    forward pass needs all processes. A process with fewer prompts generates extra completions and drops them.
    """

    def any_process(self, wants: bool) -> bool:
        return any(gather_object([wants]))

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar: tqdm | None = None
    ) -> list[Completion]:
        padding = self._padding(prompts)
        completions = self.generator.generate(prompts + padding, sampling, seeds + [0] * len(padding), bar)
        return completions[: len(prompts)]

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        padding = self._padding(prompts)
        return self.generator.score(prompts + padding, completions + [[]] * len(padding))[: len(prompts)]

    @staticmethod
    def _padding(prompts: list[list[int]]) -> list[list[int]]:
        """Copies of the shortest prompt, as many as this process has fewer than another one."""
        counts, shortest = zip(*gather_object([(len(prompts), min(prompts, key=len, default=None))]), strict=True)
        prompt = min((prompt for prompt in shortest if prompt is not None), key=len, default=None)
        return [prompt] * (max(counts) - len(prompts))


class TensorParallelGenerator(_SharedGenerator):
    """
    Let a group of processes (by default all) generate together through an engine that they share. Each of them must
    ask it for the completions of all. They ask at the same points, each for any number of completions.
    """

    def __init__(self, generator: Generator, group: dist.ProcessGroup | None = None):
        super().__init__(generator)
        self.group = group

    def any_process(self, wants: bool) -> bool:
        return any(self._gather(wants))

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar: tqdm | None = None
    ) -> list[Completion]:
        asked = self._gather((prompts, seeds))
        all_prompts = [prompt for theirs, _ in asked for prompt in theirs]
        all_seeds = [seed for _, theirs in asked for seed in theirs]
        completions = self.generator.generate(all_prompts, sampling, all_seeds, bar)
        start = sum(len(theirs) for theirs, _ in asked[: dist.get_rank(self.group)])
        return completions[start : start + len(prompts)]

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        return self.generator.score(prompts, completions)

    def _gather(self, value: Any) -> list[Any]:
        values = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(values, value, group=self.group)
        return values
