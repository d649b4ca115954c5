# SPDX-License-Identifier: Apache-2.0

"""An engine with weights of its own, as a vLLM server has them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

from torch import nn
from transformers import PreTrainedTokenizerBase

from trl_nlac.generation.engine import SyncedGenerator
from trl_nlac.generation.generator import Completion, Sampling
from trl_nlac.generation.transformers import TransformersGenerator


class TinyEngine:
    """
    Generates with a copy of the model, for one thread after the other. The next call raises `error`, if it is set.
    """

    forgets_weights = False
    max_model_length = 512

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase):
        self.model = model
        self.error: Exception | None = None
        self._copy = deepcopy(model)
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._num_running = 0

    @contextmanager
    def awake(self) -> Iterator[None]:
        yield

    def sync_weights(self) -> None:
        assert not self._num_running, "answers of two sets of weights"
        self._copy.load_state_dict(self.model.state_dict())

    def generate(self, prompts, params, adapter, bar) -> list[Completion]:
        if self.error is not None:
            raise self.error
        self._num_running += 1
        try:
            return self._complete(prompts, [own["seed"] for own in params], **params[0])
        finally:
            self._num_running -= 1

    def _complete(self, prompts, seeds, max_tokens, temperature, stop_token_ids, **others) -> list[Completion]:
        generator = TransformersGenerator(None, self._tokenizer, stop_token_ids, batch_size=128)
        with self._lock, generator.session(self._copy):
            return generator.generate(prompts, Sampling(max_tokens, temperature), seeds)

    def take_cache_counts(self) -> tuple[int, int]:
        return 0, 0


BESIDE = {"use_vllm": True, "vllm_mode": "server", "async_rollouts": True}


def load_tiny_engine(model, options, accelerator, tokenizer, eos_token_ids, **others) -> SyncedGenerator:
    """Load a generator with an engine in place of a vLLM server."""
    scorer = TransformersGenerator(accelerator, tokenizer, eos_token_ids, batch_size=128)
    return SyncedGenerator(TinyEngine(model, tokenizer), scorer, eos_token_ids)
