# SPDX-License-Identifier: Apache-2.0

"""vLLM in the process of the trainer."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from accelerate.utils import is_peft_model
from tqdm.auto import tqdm
from vllm import LLM

from ...private_names import VLLMGeneration, empty_cache
from ..engine import Adapter, allowed_rank, cache_shortage
from ..generator import Completion
from .local import LocalEngine, cpu_options
from .request_loop import RequestLoop
from .weights import PRECISIONS, save_adapter, weights_of


logger = logging.getLogger(__name__)


class ColocatedEngine(LocalEngine, VLLMGeneration):
    """
    TRL's colocated engine. In addition, it runs on a CPU, serves adapters without merging them, and sleeps between
    sessions rather than after each call. The `revision` is that of the model on the Hub, whose base weights vLLM loads
    itself; the other arguments are TRL's.
    """

    _has_warned = False

    def __init__(self, *args, revision: str | None = None, **kwargs):
        self.revision = revision
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        # The trainer's precision; for float32 weights vLLM would choose half precision.
        dtype = PRECISIONS.get(self.accelerator.mixed_precision, self.model.dtype)
        options = {"dtype": str(dtype).removeprefix("torch."), "revision": self.revision}
        # At sleep level 2 it loses its weights. They are loaded again anyway, except the base weights of adapters.
        self.sleep_level = (1 if is_peft_model(self.model) else 2) if self.enable_sleep_mode else 0
        options["enable_sleep_mode"] = self.enable_sleep_mode
        self.enable_sleep_mode = False  # otherwise TRL sleeps after each call
        if is_peft_model(self.model):
            rank = max(config.r for config in self.model.peft_config.values())
            options.update(enable_lora=True, max_loras=3, max_lora_rank=allowed_rank(rank))
        if self.accelerator.device.type == "cpu":
            options.update(
                cpu_options(self.max_model_length or self.model.config.get_text_config().max_position_embeddings)
            )
        with mock.patch(f"{VLLMGeneration.__module__}.LLM", lambda **kwargs: LLM(**{**kwargs, **options})):
            super()._init_vllm()
        self.requests = RequestLoop(self.llm)
        if self.sleep_level:
            self.llm.sleep(level=self.sleep_level)
        self.max_model_length = self.llm.model_config.max_model_len
        self.forgets_weights = self.sleep_level == 2
        cache = self.llm.llm_engine.vllm_config.cache_config
        self.cache_room = cache.num_gpu_blocks * cache.block_size  # tokens
        self._adapters_dir = tempfile.TemporaryDirectory(prefix="nlac_adapters_")

    @contextmanager
    def awake(self) -> Iterator[None]:
        if self.sleep_level == 1:
            self.llm.wake_up()
        try:
            yield
        finally:
            self.requests.cancel()  # what an error left behind
            if self.sleep_level:
                self.llm.sleep(level=self.sleep_level)

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        completions = super().generate(prompts, params, adapter, bar)
        if not self._has_warned:
            sequences = [p + completion.token_ids for p, completion in zip(prompts, completions, strict=True)]
            shortage = cache_shortage(sequences, self.cache_room, self.gpu_memory_utilization, self.sleep_level > 0)
            if shortage is not None:
                self._has_warned = True
                logger.warning(shortage)
        return completions

    def sync_weights(self) -> None:
        self.version += 1  # vLLM can leave prefixes of earlier weights where they are
        if self.sleep_level:
            empty_cache()
            self.llm.wake_up(tags=["weights"])
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        if runner.device.type != "cpu":
            super().sync_weights()
        else:
            # vLLM packs weights for the CPU; after that they can be loaded layer by layer, but not one by one.
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
