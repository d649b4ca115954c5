# SPDX-License-Identifier: Apache-2.0

"""The interface for sampling tokens."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from tqdm.auto import tqdm


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling, with the names of [`~transformers.GenerationConfig`]."""

    max_tokens: int  # of the longest completion
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    # other settings of the backend: `GenerationConfig`, or vLLM's `SamplingParams`
    generation_kwargs: dict[str, Any] = field(default_factory=dict)
    regex: str | None = None  # that a completion must match; only with vLLM


@dataclass(frozen=True)
class Completion:
    """A sampled answer."""

    token_ids: list[int]  # end-of-turn token included
    finished: bool  # whether it ended before the limit of tokens
    # tokens of its prompt that were in a cache; `None` where the generator cannot say
    num_cached_tokens: int | None = field(default=None, compare=False)


class Generator(Protocol):
    """The interface through which the roles generate."""

    # whether threads can call `generate` at the same time, and each gets its completions as soon as they are there
    is_concurrent: bool
    # of the longest sequence, prompt and completion; infinite if only the model limits it, or if it is unknown
    max_model_length: float

    def session(self, model: nn.Module) -> "contextmanager[None]":
        """Within it, `generate` uses the weights that `model` has at its start."""

    def any_process(self, wants: bool) -> bool:
        """
        Whether any process wants to generate. Where processes generate together, all of them call this at the same
        points, and then all call `generate`, with empty lists if need be. Where each generates alone, it is what this
        process wants.
        """

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar: tqdm | None = None
    ) -> list[Completion]:
        """Sample a completion for each prompt, in order, by its seed alone. A `bar` is updated as they finish."""

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Compute log-likelihoods of completions (nats, temperature 1). All processes call this at the same points."""

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call."""
