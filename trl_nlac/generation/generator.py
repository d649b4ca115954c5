# SPDX-License-Identifier: Apache-2.0

"""The interface for sampling tokens."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from tqdm.auto import tqdm


@dataclass(frozen=True)
class Sampling:
    """
    Settings of sampling.

    Args:
        max_tokens (`int`):
            Longest completion.
        temperature (`float`, *optional*, defaults to `1.0`):
            `0` is greedy.
        top_p, top_k, min_p, repetition_penalty:
            As in [`~transformers.GenerationConfig`].
        generation_kwargs (`dict[str, Any]`, *optional*):
            Other settings of the backend: [`~transformers.GenerationConfig`], or vLLM's `SamplingParams`.
        regex (`str`, *optional*):
            Regular expression that a completion must match. Only with vLLM.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    generation_kwargs: dict[str, Any] = field(default_factory=dict)
    regex: str | None = None


@dataclass(frozen=True)
class Completion:
    """
    A sampled answer.

    Args:
        token_ids (`list[int]`):
            The tokens, end-of-turn token included.
        finished (`bool`):
            Whether it ended before the limit of tokens.
        num_cached_tokens (`int`, *optional*):
            Number of tokens of its prompt that were in a cache. `None` where the generator cannot say.
    """

    token_ids: list[int]
    finished: bool
    num_cached_tokens: int | None = field(default=None, compare=False)


class Generator(Protocol):
    """
    The interface through which the roles generate.

    Attributes:
        is_concurrent (`bool`):
            Whether threads can call `generate` at the same time, and each gets its completions as soon as they are
            there, whatever the others ask for.
        max_model_length (`float`):
            Longest sequence, prompt and completion; infinite if only the model limits it, or if it is unknown.
    """

    is_concurrent: bool
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
        """
        Sample one completion for each prompt, in their order. The result of a seed does not depend on the other
        prompts. A `bar` is updated as they finish.
        """

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """
        Compute the log-likelihood of each completion after its prompt, in nats, at temperature 1. All processes call
        this at the same points, with empty lists if need be.
        """

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call."""
