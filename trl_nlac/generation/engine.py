# SPDX-License-Identifier: Apache-2.0

"""Sampling through an engine: vLLM in this process, or a server."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate.utils import gather_object, is_peft_model
from torch import nn
from tqdm.auto import tqdm

from ..shards import local_shards
from .generator import Completion, Generator, Sampling
from .prefix_cache import common_prefix


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adapter:
    """An adapter (LoRA) of an engine."""

    number: int  # from 1 up
    path: Path  # folder with its weights; no other run uses the same name, so that what is under a name never changes

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}_{self.number}"


class Engine(Protocol):
    """An engine that generates: vLLM in this process, or a server."""

    max_model_length: float  # of the longest sequence, prompt and completion; infinite if it is unknown

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        """Sample a completion for each prompt, in any thread, without waiting for the completions of other calls."""

    def take_cache_counts(self) -> tuple[int, int]:
        """Return the number of prompt tokens since the last call, and how many of them were in the prefix cache."""


class SyncedEngine(Engine, Protocol):
    """An engine whose weights follow a model."""

    model: nn.Module
    forgets_weights: bool  # whether weights must be loaded again after sleep

    def awake(self) -> "contextmanager[None]":
        """Keep the engine's memory allocated within this context."""

    def sync_weights(self) -> None:
        """Load the model's weights, and clear caches of earlier weights."""

    def add_adapter(self, number: int) -> Adapter:
        """Load the model's adapter."""

    def drop_adapter(self, adapter: Adapter) -> None:
        """Discard an adapter."""


class ScoringEngine(Engine, Protocol):
    """An engine that scores completions, too."""

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Compute the log-likelihood of each completion after its prompt, in nats, at temperature 1."""


_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM accepts as a maximum


def allowed_rank(rank: int) -> int:
    """Return the smallest LoRA rank that vLLM accepts as a maximum and that is at least `rank`, or refuse it."""
    if rank > _RANKS[-1]:
        raise ValueError(
            f"vLLM serves adapters of a rank of at most {_RANKS[-1]}, and `r` of this one is {rank}. Choose a smaller "
            "`r`, or generate without vLLM."
        )
    return min(allowed for allowed in _RANKS if allowed >= rank)


class EngineGenerator:
    """Sample through an engine. Subclasses define the weights, and how completions are scored."""

    is_concurrent = True

    def __init__(self, engine: Engine, eos_token_ids: list[int]):
        self.engine = engine
        self.eos_token_ids = eos_token_ids
        self._adapter: Adapter | None = None  # the one to generate with

    @property
    def max_model_length(self) -> float:
        return self.engine.max_model_length

    def any_process(self, wants: bool) -> bool:
        return wants

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar: tqdm | None = None
    ) -> list[Completion]:
        return self._generate(prompts, sampling, seeds, self._adapter, bar)

    def _generate(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        rooms = [self.engine.max_model_length - len(prompt) for prompt in prompts]
        fitting = [i for i, room in enumerate(rooms) if room > 0]
        completions = [Completion([], False)] * len(prompts)
        if len(fitting) < len(prompts):
            logger.warning(
                f"{len(prompts) - len(fitting)} of {len(prompts)} prompts do not fit into vLLM's context of "
                f"{self.engine.max_model_length} tokens; their answers count as cut off. Raise "
                "`vllm_max_model_length` (of a server, `--max-model-len`) or lower `max_prompt_length`."
            )
        if fitting:
            params = [self._params(sampling, seeds[i], rooms[i]) for i in fitting]
            answers = self.engine.generate([prompts[i] for i in fitting], params, adapter, bar)
            for i, answer in zip(fitting, answers, strict=True):
                completions[i] = answer
        return completions

    def take_metrics(self) -> dict[str, float]:
        """Return the share of prompt tokens that were in the prefix cache."""
        tokens, cached = self.engine.take_cache_counts()
        return {"generation/prefix_hit_rate": cached / tokens} if tokens else {}

    def _params(self, sampling: Sampling, seed: int, room: int) -> dict[str, Any]:
        """Name the settings as vLLM's `SamplingParams` does."""
        params = {
            "max_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p or 0.0,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": seed,
            "stop_token_ids": self.eos_token_ids,
            "detokenize": False,
        }
        if sampling.regex is not None:
            params["structured_outputs"] = {"regex": sampling.regex}
        return {**params, **sampling.generation_kwargs}


def score_by_token(
    score_tokens: Callable[[list[list[int]], list[int]], list[float]],
    prompts: list[list[int]],
    completions: list[list[int]],
) -> list[float]:
    """Score completions token by token, see [`forced`], which uses the prefix cache and works with adapters."""
    pairs = list(zip(prompts, completions, strict=True))
    before = [prompt + completion[:i] for prompt, completion in pairs for i in range(len(completion))]
    logps = iter(score_tokens(before, [token_id for completion in completions for token_id in completion]))
    return [sum(islice(logps, len(completion))) for completion in completions]


def forced(token_id: int) -> dict[str, Any]:
    """Parameters with which vLLM samples this token. Its log-likelihood is still the model's."""
    return {"max_tokens": 1, "temperature": 0.0, "allowed_token_ids": [token_id]}


def cache_shortage(sequences: list[list[int]], room: int, utilization: float, sleeps: bool) -> str | None:
    """Say, for a warning, why a key/value cache with `room` for so many tokens is too small for a batch."""
    if sum(map(len, sequences)) <= room:
        return None
    needed, before = 0, np.empty(0, dtype=np.int64)
    for tokens in sorted(sequences):
        sequence = np.array(tokens)
        needed += len(sequence) - common_prefix(before, sequence)
        before = sequence
    if needed <= room:
        return None
    asleep = "" if sleeps else ", with `vllm_enable_sleep_mode=True`, so that training has that memory in its turn"
    return (
        f"vLLM's cache has room for {room:,} tokens, and the prompts and answers of a batch are {needed:,}: the next "
        f"role reads prompts again. Raise `vllm_gpu_memory_utilization` ({utilization}){asleep}."
    )


class FixedGenerator(EngineGenerator):
    """Sample with the weights that an engine was started with."""

    engine: ScoringEngine

    @contextmanager
    def session(self, model: nn.Module | None) -> Iterator[None]:
        yield

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        return self.engine.score(prompts, completions)


class SyncedGenerator(EngineGenerator):
    """
    Sample through an engine whose weights follow a model in training.

    At the start of a session the engine loads the model's weights if they have changed: all of them, or, with LoRA, an
    adapter, so that the base weights are never loaded again. Cached prefixes of other weights are cleared, others are
    reused.

    A generator [`beside`] can use the engine between and during sessions, from other threads: with an adapter that was
    [`share`]d at any time, with full weights as long as the engine has those that were shared. The `scorer` scores
    completions.
    """

    def __init__(self, engine: SyncedEngine, scorer: Generator, eos_token_ids: list[int]):
        super().__init__(engine, eos_token_ids)
        self.scorer = scorer
        self._num_syncs = 0  # since metrics were last taken
        self._model: nn.Module | None = None
        self._loaded: list[int] | None = None  # fingerprint of the weights in the engine
        self._adapters: list[tuple[list[int], Adapter]] = []  # of the last weights, newest last
        self._num_adapters = 0
        self._beside: BesideGenerator | None = None
        self._shared: list[int] | None = None  # fingerprint of its weights

    def beside(self) -> "BesideGenerator":
        """Make a generator for other threads."""
        self._beside = BesideGenerator(self.engine, self.eos_token_ids)
        return self._beside

    def share(self) -> None:
        """Within a session: let the generator of [`beside`] use its weights, until others are shared."""
        self._shared = self._loaded
        self._beside.open(self._adapter)

    @contextmanager
    def session(self, model: nn.Module) -> Iterator[None]:
        weights = fingerprint(self.engine.model)
        has_adapter = is_peft_model(self.engine.model)
        # The same on all processes, which load together.
        differs = gather_object([(weights != self._loaded, weights != self._shared)])
        is_other, is_unshared = map(any, zip(*differs, strict=True))
        if self._beside is not None and is_other and not has_adapter:
            self._beside.close()
        with self.engine.awake():
            if has_adapter:
                self._load_adapter(weights)
            elif is_other:
                self._loaded = None  # an interrupted sync leaves parts of both
                self.engine.sync_weights()
                self._num_syncs += 1
            self._loaded = weights
            self._model = model
            if self._beside is not None and not is_unshared:
                self._beside.open(self._adapter)
            try:
                yield
            finally:
                self._model = None
                if self.engine.forgets_weights:
                    self._loaded = None

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        with self.scorer.session(self._model):
            return self.scorer.score(prompts, completions)

    def take_metrics(self) -> dict[str, float]:
        """Return the number of weight syncs, and the share of prompt tokens that were in the prefix cache."""
        num_syncs, self._num_syncs = self._num_syncs, 0
        return {"generation/num_syncs": float(num_syncs), **super().take_metrics()}

    def _load_adapter(self, weights: list[int]) -> None:
        """Load the adapter, unless it is one of the last three (policy, target, initial), or the shared one."""
        known = [(other, adapter) for other, adapter in self._adapters if other == weights]
        if any(gather_object([not known])):
            self._num_adapters += 1
            known = [(weights, self.engine.add_adapter(self._num_adapters))]
        self._adapters = [entry for entry in self._adapters if entry[0] != weights] + known
        self._adapter = self._adapters[-1][1]
        for entry in self._adapters[:-3]:
            if entry[0] != self._shared:
                if self._beside is not None:
                    self._beside.wait_for(entry[1])
                self.engine.drop_adapter(entry[1])
                self._adapters.remove(entry)


class BesideGenerator(EngineGenerator):
    """Sample in other threads through a [`SyncedGenerator`]'s engine; wait while it has weights that differ."""

    def __init__(self, engine: SyncedEngine, eos_token_ids: list[int]):
        super().__init__(engine, eos_token_ids)
        self.is_open = False  # whether they do not
        self._gate = threading.Condition()
        self._is_stopped = False
        self._running: Counter[Adapter | None] = Counter()  # number of calls

    def open(self, adapter: Adapter | None) -> None:
        """Let calls go on, with an adapter or the engine's own weights."""
        with self._gate:
            self._adapter, self.is_open, self._is_stopped = adapter, True, False
            self._gate.notify_all()

    def close(self) -> None:
        """Hold new calls, and wait for the end of those that run."""
        with self._gate:
            self.is_open = False
            self._gate.wait_for(lambda: not self._running.total())

    def wait_for(self, adapter: Adapter) -> None:
        """Wait for the end of the calls with an adapter that is no longer the shared one."""
        with self._gate:
            self._gate.wait_for(lambda: not self._running[adapter])

    def stop(self) -> None:
        """Let new calls and those that wait raise `InterruptedError`."""
        with self._gate:
            self._is_stopped = True
            self._gate.notify_all()

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar: tqdm | None = None
    ) -> list[Completion]:
        with self._gate:
            self._gate.wait_for(lambda: self.is_open or self._is_stopped)
            if self._is_stopped:
                raise InterruptedError("Playing beside training was stopped.")
            adapter = self._adapter
            self._running[adapter] += 1
        try:
            return self._generate(prompts, sampling, seeds, adapter, bar)
        finally:
            with self._gate:
                self._running[adapter] -= 1
                self._gate.notify_all()


@torch.no_grad()
def fingerprint(model: nn.Module) -> list[int]:
    """Compute a number for each trained tensor that changes with its content, of this process's part of it."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    parts = [shard.live.contiguous() for shard in local_shards(model).values()]
    return torch.stack([part.view(words[part.element_size()]).sum(dtype=torch.int64) for part in parts]).tolist()
