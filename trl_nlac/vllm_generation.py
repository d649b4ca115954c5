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

"""Sampling with vLLM, through TRL's [`~trl.generation.vllm_generation.VLLMGeneration`]."""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from accelerate.utils import is_peft_model
from torch import nn
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from .generation import Completion, Sampling, TransformersGenerator


class Engine(VLLMGeneration):
    """
    TRL's colocated engine, which besides can be loaded on a CPU, and serves adapters without merging them.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model whose weights it gets. Of one with LoRA only the adapters are ever loaded.
        args, kwargs:
            As for [`~trl.generation.vllm_generation.VLLMGeneration`].
    """

    def _init_vllm(self) -> None:
        # As the trainer computes; vLLM's own choice for float32 weights would be half precision.
        precisions = {"bf16": "bfloat16", "fp16": "float16"}
        dtype = str(self.model.dtype).removeprefix("torch.")
        options = {"dtype": precisions.get(self.accelerator.mixed_precision, dtype)}
        if is_peft_model(self.model):
            rank = max(config.r for config in self.model.peft_config.values())
            options.update(enable_lora=True, max_loras=2, max_lora_rank=_allowed_rank(rank))
        with mock.patch.object(vllm_generation, "LLM", partial(LLM, **options)):  # TRL's own call has no such options
            super()._init_vllm()

    def sync_weights(self) -> None:
        """Load the weights that the model has now, and forget what was computed with those before."""
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        if runner.device.type != "cpu":
            super().sync_weights()
            return
        weights = dict(self._iter_named_params())
        head = self.model.get_output_embeddings()
        if head is not None and self.model.config.get_text_config().tie_word_embeddings:
            weights["lm_head.weight"] = head.weight.data  # must be named, although it is that of the input
        # Loading parameter by parameter does not work once vLLM has packed them for the CPU: layer by layer does.
        runner.reload_weights(weights_iterator=iter(weights.items()))
        self.llm.reset_prefix_cache()


class VLLMGenerator:
    """
    Samples with a vLLM engine that lives in the same process as the trainer.

    At the start of a session the engine gets the weights that the model has then, if they are not those that it has: all
    of them, or, with LoRA, an adapter, so that the base weights are never loaded again. Prefixes that were computed
    with other weights are forgotten, others are reused.

    Args:
        engine ([`Engine`]):
            What generates.
        scorer ([`~generation.TransformersGenerator`]):
            What scores completions.
        eos_token_ids (`list[int]`):
            Tokens that end a completion.
    """

    def __init__(self, engine: Engine, scorer: TransformersGenerator, eos_token_ids: list[int]):
        self.engine = engine
        self.scorer = scorer
        self.eos_token_ids = eos_token_ids
        self._metrics: Counter[str] = Counter()
        self._model: nn.Module | None = None
        self._loaded: list[int] | None = None  # fingerprint of the weights in the engine
        self._adapters: list[tuple[list[int], LoRARequest]] = []  # of the last weights, newest last
        self._num_adapters = 0
        self._directory = tempfile.TemporaryDirectory(prefix="nlac_adapters_")

    @contextmanager
    def session(self, model: nn.Module) -> Iterator[None]:
        self._model = model
        start = time.perf_counter()
        weights = _fingerprint(self.engine.model)
        if is_peft_model(self.engine.model):
            self._load_adapter(weights)
        elif weights != self._loaded:
            self.engine.sync_weights()
            self._metrics["generation/num_syncs"] += 1
        self._loaded = weights
        self._metrics["time/sync"] += time.perf_counter() - start
        try:
            yield
        finally:
            self._model = None

    def any_process(self, wants: bool) -> bool:
        return wants

    def generate(self, prompts: list[list[int]], sampling: Sampling, seeds: list[int]) -> list[Completion]:
        if not prompts:
            return []
        outputs = self.engine.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [self._sampling_params(sampling, seed) for seed in seeds],
            lora_request=self._adapters[-1][1] if self._adapters else None,
            use_tqdm=False,
        )
        self._metrics["prompt_tokens"] += sum(map(len, prompts))
        self._metrics["cached_tokens"] += sum(output.num_cached_tokens or 0 for output in outputs)
        return [
            Completion(list(output.outputs[0].token_ids), output.outputs[0].finish_reason == "stop")
            for output in outputs
        ]

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        with self.scorer.session(self._model):
            return self.scorer.score(prompts, completions)

    def take_metrics(self) -> dict[str, float]:
        """Seconds and number of weight syncs, and the share of prompt tokens that the prefix cache knew."""
        metrics, self._metrics = self._metrics, Counter()
        cached, tokens = metrics.pop("cached_tokens", 0), metrics.pop("prompt_tokens", 0)
        return {
            "generation/num_syncs": 0,
            **metrics,
            **({"generation/prefix_hit_rate": cached / tokens} if tokens else {}),
        }

    def _sampling_params(self, sampling: Sampling, seed: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p or 0.0,
            repetition_penalty=sampling.repetition_penalty,
            seed=seed,
            stop_token_ids=self.eos_token_ids,
            detokenize=False,
            **sampling.generation_kwargs,
        )

    def _load_adapter(self, weights: list[int]) -> None:
        """Hand the adapter over under a new name, unless it is one of the last two: those of policy and target."""
        known = [(other, request) for other, request in self._adapters if other == weights]
        if not known:
            self._num_adapters += 1
            name = f"adapter_{self._num_adapters}"
            path = Path(self._directory.name) / name
            self.engine.model.save_pretrained(path)
            known = [(weights, LoRARequest(name, self._num_adapters, str(path)))]
        self._adapters = [entry for entry in self._adapters if entry[0] != weights] + known
        while len(self._adapters) > 2:
            shutil.rmtree(self._adapters.pop(0)[1].path)


@torch.no_grad()
def _fingerprint(model: nn.Module) -> list[int]:
    """A number for each trained tensor that changes with its content."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = [
        parameter.detach().contiguous().view(words[parameter.element_size()]).sum(dtype=torch.int64)
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    return torch.stack(numbers).tolist()


def _allowed_rank(rank: int) -> int:
    """The smallest rank that vLLM can be told to make room for."""
    return min(allowed for allowed in (8, 16, 32, 64, 128, 256, 320, 512) if allowed >= rank)
