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

"""What an agent speaks through: transformers or vLLM in this process, or a server with OpenAI's interface."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl.import_utils import is_vllm_available

from ..chat.encoder import ChatEncoder
from ..generation.base import Generator, TransformersGenerator
from ..generation.engine import Engine, EngineGenerator
from ..nlac_config import NLACConfig
from ..training.loading import ending_token_ids, load_tokenizer


class ScoringEngine(Engine, Protocol):
    """One that scores as well."""

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Log-likelihood of each completion after its prompt, in nats, at temperature 1."""


class FixedGenerator(EngineGenerator):
    """
    Samples with weights that an engine was started with.

    Args:
        engine ([`ScoringEngine`]):
            What generates and scores.
        eos_token_ids (`list[int]`):
            Tokens that end a completion.
    """

    engine: ScoringEngine

    @contextmanager
    def session(self, model: nn.Module | None) -> Iterator[None]:
        yield

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        return self.engine.score(prompts, completions)


def load_backend(
    backend: str,
    model: str,
    args: NLACConfig,
    device: torch.device,
    revision: str | None,
    trust_remote_code: bool,
    backend_kwargs: dict[str, Any],
) -> tuple[Generator, ChatEncoder, PreTrainedModel | None]:
    """
    Returns:
        What generates, the encoder of conversations, and the model, if it is in this process as one of transformers.

    Raises:
        ValueError: If there is no such backend, or it does not serve the model.
        ImportError: If what the backend needs is not installed.
        ConnectionError: If no server answers.
    """
    is_endpoint = backend.startswith(("http://", "https://"))
    if backend not in ("transformers", "vllm") and not is_endpoint:
        raise ValueError(
            f'`backend` must be "transformers", "vllm" or the URL of a server, as "http://localhost:8000/v1", got {backend!r}.'
        )
    from_hub = {"revision": revision, "trust_remote_code": trust_remote_code}
    tokenizer = AutoTokenizer.from_pretrained(model, **from_hub)
    if backend == "transformers":
        loaded = AutoModelForCausalLM.from_pretrained(model, **{"dtype": "auto", **from_hub, **backend_kwargs})
        loaded = loaded.to(device).eval()
        tokenizer = load_tokenizer(tokenizer, loaded, args)
        chat = ChatEncoder(tokenizer, args.chat_template_kwargs)
        eos_token_ids = ending_token_ids(tokenizer, chat.stop_ids, loaded.generation_config)
        return TransformersGenerator(None, tokenizer, eos_token_ids, args.max_generation_batch_size), chat, loaded
    chat = ChatEncoder(tokenizer, args.chat_template_kwargs)
    eos_token_ids = ending_token_ids(tokenizer, chat.stop_ids)  # engines know what the model declares
    if backend == "vllm":
        if not is_vllm_available():
            raise ImportError("`backend='vllm'` needs vLLM: `pip install trl-nlac[vllm]`.")
        from ..generation.vllm.offline import OfflineEngine

        engine = OfflineEngine(model, **from_hub, **backend_kwargs)
    else:
        if find_spec("openai") is None:
            raise ImportError(f"`backend={backend!r}` needs `pip install trl-nlac[openai]`.")
        from ..generation.endpoint import EndpointEngine

        engine = EndpointEngine(backend, model, tokenizer, args.max_generation_batch_size, **backend_kwargs)
    return FixedGenerator(engine, eos_token_ids), chat, None
