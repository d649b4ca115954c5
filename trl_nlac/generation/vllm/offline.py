# SPDX-License-Identifier: Apache-2.0

"""vLLM in this process, with the weights of a saved model."""

from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import AutoConfig
from transformers.utils import cached_file
from vllm import LLM, SamplingParams

from ...private_names import current_platform
from ..engine import Adapter, allowed_rank, forced, score_by_token
from ..generator import Completion
from ..loading import adapter_config, check_adapter, check_adapter_precision
from .local import LocalEngine, cpu_options
from .request_loop import RequestLoop


class OfflineEngine(LocalEngine):
    """
    vLLM with a whole model, or with an adapter (LoRA) on its base model. `options` are arguments of `vllm.LLM`. Raise
    a `ValueError` if vLLM would not serve the adapter as it was trained, or cannot compute it in this precision.
    """

    def __init__(self, model: str, revision: str | None = None, trust_remote_code: bool = False, **options):
        self._adapter: Adapter | None = None
        config = adapter_config(model, revision)
        if config is not None:
            check_adapter(config)
            check_adapter_precision(options.get("dtype"), current_platform.device_type)
            weights = cached_file(model, "adapter_model.safetensors", revision=revision)
            options = {"enable_lora": True, "max_loras": 1, "max_lora_rank": allowed_rank(config["r"]), **options}
            self._adapter = Adapter(1, Path(weights).parent)
            model, revision = config["base_model_name_or_path"], config.get("revision")
        if current_platform.is_cpu():
            hub = {"revision": revision, "trust_remote_code": trust_remote_code}
            text = AutoConfig.from_pretrained(model, **hub).get_text_config()
            options = {**cpu_options(options.get("max_model_len") or text.max_position_embeddings), **options}
        self.llm = LLM(model, revision=revision, trust_remote_code=trust_remote_code, **options)
        self.requests = RequestLoop(self.llm)
        self.max_model_length = self.llm.model_config.max_model_len

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        return super().generate(prompts, params, self._adapter, bar)

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        return score_by_token(self._score_tokens, prompts, completions)

    def _score_tokens(self, prompts: list[list[int]], token_ids: list[int]) -> list[float]:
        params = [SamplingParams(logprobs=0, detokenize=False, **forced(token_id)) for token_id in token_ids]
        outputs = self.ask(prompts, params, self._adapter)
        return [o.outputs[0].logprobs[0][token_id].logprob for o, token_id in zip(outputs, token_ids, strict=True)]
