# SPDX-License-Identifier: Apache-2.0

"""Common parts of the vLLM engines that run in this process."""

from typing import Any

from tqdm.auto import tqdm
from vllm import RequestOutput, SamplingParams

from ...private_names import LoRARequest, StructuredOutputsParams
from ..engine import Adapter
from ..generator import Completion
from .request_loop import Request, RequestLoop


class LocalEngine:
    """Generates with an engine in this process and counts the hits of its prefix cache."""

    requests: RequestLoop
    version = 0  # of the weights that were loaded last
    _cache_counts = (0, 0)

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        outputs = self.ask(prompts, [sampling_params(**kwargs) for kwargs in params], adapter, bar)
        with self.requests.lock:
            tokens, cached = self._cache_counts
            cached += sum(output.num_cached_tokens or 0 for output in outputs)
            self._cache_counts = tokens + sum(map(len, prompts)), cached
        answers = [(output.outputs[0], output.num_cached_tokens) for output in outputs]
        return [Completion(list(answer.token_ids), answer.finish_reason == "stop", num) for answer, num in answers]

    def ask(
        self, prompts: list[list[int]], params: list[SamplingParams], adapter: Adapter | None, bar: tqdm | None = None
    ) -> list[RequestOutput]:
        """Return vLLM's own outputs."""
        loaded = None if adapter is None else LoRARequest(adapter.name, adapter.number, str(adapter.path))
        asked = zip(prompts, params, strict=True)
        requests = [Request(prompt, own, loaded, str(self.version)) for prompt, own in asked]
        if bar is not None:
            for request in requests:
                request.output.add_done_callback(lambda _: bar.update())
        self.requests.submit(requests)
        return [request.output.result() for request in requests]

    def take_cache_counts(self) -> tuple[int, int]:
        with self.requests.lock:
            counts, self._cache_counts = self._cache_counts, (0, 0)
        return counts


def cpu_options(context: int) -> dict[str, Any]:
    """Return options for a CPU, whose generators cannot be rewound, as vLLM does for a prefill in several steps."""
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, context)}


def sampling_params(structured_outputs: dict[str, Any] | None = None, **kwargs) -> SamplingParams:
    """Convert the parameters of [`~generation.engine.EngineGenerator`]."""
    if structured_outputs is not None:
        kwargs["structured_outputs"] = StructuredOutputsParams(**structured_outputs)
    return SamplingParams(**kwargs)
