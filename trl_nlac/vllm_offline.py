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

"""vLLM in this process, with the weights of a saved model."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import AutoConfig
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform

from .generation import Completion
from .saved_roles import find_file
from .vllm_colocate import allowed_rank, cpu_options, sampling_params
from .vllm_generation import Adapter, forced, forced_tokens


class OfflineEngine:
    """
    vLLM with a whole model, or with an adapter (LoRA) on its base model.

    Args:
        model (`str`):
            Folder or repository on the Hub, of a whole model or of an adapter.
        revision (`str`, *optional*):
            Branch, tag or commit on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the Hub may run.
        **options:
            Arguments of `vllm.LLM`.
    """

    def __init__(self, model: str, revision: str | None = None, trust_remote_code: bool = False, **options):
        self._lora: LoRARequest | None = None
        adapter = find_file(model, "adapter_config.json", revision)
        if adapter is not None:
            weights = find_file(model, "adapter_model.safetensors", revision)
            config = json.loads(adapter.read_text(encoding="utf-8"))
            options = {"enable_lora": True, "max_loras": 1, "max_lora_rank": allowed_rank(config["r"]), **options}
            self._lora = LoRARequest("agent", 1, str(Path(weights).parent))
            model, revision = config["base_model_name_or_path"], config.get("revision")
        if current_platform.is_cpu():
            hub = {"revision": revision, "trust_remote_code": trust_remote_code}
            text = AutoConfig.from_pretrained(model, **hub).get_text_config()
            options = {**cpu_options(options.get("max_model_len") or text.max_position_embeddings), **options}
        self.llm = LLM(model, revision=revision, trust_remote_code=trust_remote_code, **options)
        self.max_model_length = self.llm.model_config.max_model_len
        self._cache_counts = (0, 0)

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        outputs = self._ask(prompts, [sampling_params(**kwargs) for kwargs in params], bar)
        tokens, cached = self._cache_counts
        cached += sum(output.num_cached_tokens or 0 for output in outputs)
        self._cache_counts = tokens + sum(map(len, prompts)), cached
        answers = [output.outputs[0] for output in outputs]
        return [Completion(list(answer.token_ids), answer.finish_reason == "stop") for answer in answers]

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        questions = forced_tokens(prompts, completions)
        params = [SamplingParams(logprobs=0, detokenize=False, **forced(token_id)) for _, token_id in questions]
        outputs = self._ask([prompt for prompt, _ in questions], params, None)
        answers = [output.outputs[0].logprobs[0] for output in outputs]
        logps = iter(found[token_id].logprob for found, (_, token_id) in zip(answers, questions, strict=True))
        return [sum(islice(logps, len(completion))) for completion in completions]

    def _ask(self, prompts: list[list[int]], params: list[SamplingParams], bar: tqdm | None):
        return self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            params,
            lora_request=self._lora,
            use_tqdm=False if bar is None or bar.disable else lambda **_: bar,
        )

    def take_cache_counts(self) -> tuple[int, int]:
        counts, self._cache_counts = self._cache_counts, (0, 0)
        return counts
