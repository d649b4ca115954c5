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

"""vLLM in the process of the trainer."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from accelerate.utils import is_peft_model
from tqdm.auto import tqdm
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

from .generation import Completion
from .vllm_generation import Adapter
from .vllm_weights import save_adapter, weights_of


class ColocatedEngine(VLLMGeneration):
    """
    TRL's colocated engine, which besides can be loaded on a CPU, serves adapters without merging them, and sleeps between
    sessions rather than after each call.

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
        # Asleep at level 2 it loses its weights, which are loaded again anyway, but for the base weights of adapters.
        self.sleep_level = (1 if is_peft_model(self.model) else 2) if self.enable_sleep_mode else 0
        options["enable_sleep_mode"] = self.enable_sleep_mode
        self.enable_sleep_mode = False  # for TRL, which would sleep after each call
        if is_peft_model(self.model):
            rank = max(config.r for config in self.model.peft_config.values())
            options.update(enable_lora=True, max_loras=2, max_lora_rank=allowed_rank(rank))
        if self.accelerator.device.type == "cpu":
            options.update(
                cpu_options(self.max_model_length or self.model.config.get_text_config().max_position_embeddings)
            )
        with mock.patch.object(vllm_generation, "LLM", lambda **kwargs: LLM(**{**kwargs, **options})):
            super()._init_vllm()
        if self.sleep_level:
            self.llm.sleep(level=self.sleep_level)
        self.max_model_length = self.llm.model_config.max_model_len
        self.forgets_weights = self.sleep_level == 2
        self._adapters_dir = tempfile.TemporaryDirectory(prefix="nlac_adapters_")
        self._cache_counts = (0, 0)

    @contextmanager
    def awake(self) -> Iterator[None]:
        if self.sleep_level == 1:
            self.llm.wake_up()
        try:
            yield
        finally:
            if self.sleep_level:
                self.llm.sleep(level=self.sleep_level)

    def sync_weights(self) -> None:
        if self.sleep_level:
            vllm_generation.empty_cache()
            self.llm.wake_up(tags=["weights"])
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        if runner.device.type != "cpu":
            super().sync_weights()
        else:
            # Loading parameter by parameter does not work once vLLM has packed them for the CPU: layer by layer does.
            runner.reload_weights(weights_iterator=weights_of(self))
            self.llm.reset_prefix_cache()
        if self.sleep_level:
            self.llm.wake_up(tags=["kv_cache"])

    def add_adapter(self, number: int) -> Adapter:
        adapter = Adapter(number, Path(self._adapters_dir.name) / str(number))
        save_adapter(self, adapter.path)
        return adapter

    def drop_adapter(self, adapter: Adapter) -> None:
        shutil.rmtree(adapter.path)

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [sampling_params(**kwargs) for kwargs in params],
            lora_request=None if adapter is None else LoRARequest(adapter.name, adapter.number, str(adapter.path)),
            use_tqdm=False if bar is None or bar.disable else lambda **_: bar,
        )
        tokens, cached = self._cache_counts
        tokens += sum(map(len, prompts))
        self._cache_counts = tokens, cached + sum(output.num_cached_tokens or 0 for output in outputs)
        answers = [output.outputs[0] for output in outputs]
        return [Completion(list(answer.token_ids), answer.finish_reason == "stop") for answer in answers]

    def take_cache_counts(self) -> tuple[int, int]:
        counts, self._cache_counts = self._cache_counts, (0, 0)
        return counts


def cpu_options(context: int) -> dict[str, Any]:
    """
    Options that a CPU needs: a prompt that is read in several steps cannot be sampled by a seed there, because vLLM would
    turn its random generator back, which those of the CPU do not allow.
    """
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, context)}


def sampling_params(structured_outputs: dict[str, Any] | None = None, **kwargs) -> SamplingParams:
    """From the parameters of [`~vllm_generation.EngineGenerator`]."""
    if structured_outputs is not None:
        kwargs["structured_outputs"] = StructuredOutputsParams(**structured_outputs)
    return SamplingParams(**kwargs)


def allowed_rank(rank: int) -> int:
    """The smallest rank that vLLM can be told to make room for."""
    return min(allowed for allowed in (8, 16, 32, 64, 128, 256, 320, 512) if allowed >= rank)
