# SPDX-License-Identifier: Apache-2.0

"""The backend of an agent: transformers or vLLM in this process, or a server with OpenAI's interface."""

from importlib.util import find_spec
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import cached_file

from ..chat.encoder import ChatEncoder
from ..chat.tokenizer import ending_token_ids, tokenizer_of
from ..generation.engine import FixedGenerator
from ..generation.generator import Generator
from ..generation.loading import adapter_config, fit_embeddings
from ..generation.transformers import TransformersGenerator
from ..private_names import is_vllm_available


BATCH_SIZE = 128  # largest number of sequences that are generated at once


def present_device() -> torch.device:
    """Return the accelerator, if there is one: torch also names the one that it was built for where there is none."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    return torch.device("cpu")


def load_backend(
    backend: str,
    model: str,
    chat_template_kwargs: dict[str, Any] | None,
    device: torch.device,
    revision: str | None,
    trust_remote_code: bool,
    backend_kwargs: dict[str, Any],
) -> tuple[Generator, ChatEncoder, PreTrainedModel | None]:
    """Load the generator of an agent, the encoder, and the model, if it is one of transformers in this process."""
    is_endpoint = backend.startswith(("http://", "https://"))
    if backend not in ("transformers", "vllm") and not is_endpoint:
        raise ValueError(
            '`backend` must be "transformers", "vllm" or the URL of a server, as "http://localhost:8000/v1", got '
            f"{backend!r}."
        )
    from_hub = {"revision": revision, "trust_remote_code": trust_remote_code}
    tokenizer = AutoTokenizer.from_pretrained(model, **from_hub)
    if backend == "transformers":
        loaded = _load_model(model, revision, trust_remote_code, backend_kwargs)
        if backend_kwargs.get("device_map") is None:
            loaded = loaded.to(device)
        loaded = loaded.eval()
        tokenizer = tokenizer_of(tokenizer, loaded)
        chat = ChatEncoder(tokenizer, chat_template_kwargs)
        eos_token_ids = ending_token_ids(tokenizer, chat.stop_ids, loaded.generation_config)
        generator = TransformersGenerator(None, tokenizer, eos_token_ids, BATCH_SIZE, keeps_prefixes=True)
        return generator, chat, loaded
    chat = ChatEncoder(tokenizer, chat_template_kwargs)
    eos_token_ids = ending_token_ids(tokenizer, chat.stop_ids)  # engines have those that the model declares
    if backend == "vllm":
        if not is_vllm_available():
            raise ImportError("`backend='vllm'` needs vLLM: `pip install trl-nlac[vllm]`.")
        from ..generation.vllm.offline import OfflineEngine

        engine = OfflineEngine(model, **from_hub, **backend_kwargs)
    else:
        if find_spec("openai") is None:
            raise ImportError(f"`backend={backend!r}` needs `pip install trl-nlac[openai]`.")
        from ..generation.endpoint import EndpointEngine

        engine = EndpointEngine(tokenizer, backend, model, BATCH_SIZE, **backend_kwargs)
    return FixedGenerator(engine, eos_token_ids), chat, None


def _load_model(
    model: str, revision: str | None, trust_remote_code: bool, backend_kwargs: dict[str, Any]
) -> PreTrainedModel:
    """Load a model, or an adapter on its base model, which has a revision of its own."""
    base, of_base = model, revision
    is_whole = cached_file(model, "config.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    adapter = None if is_whole else adapter_config(model, revision)
    if adapter is not None:
        base, of_base = adapter["base_model_name_or_path"], adapter.get("revision")
    kwargs = {"dtype": "auto", "revision": of_base, "trust_remote_code": trust_remote_code, **backend_kwargs}
    loaded = _auto_class(base, of_base, trust_remote_code).from_pretrained(base, **kwargs)
    if adapter is not None:
        fit_embeddings(loaded, model, revision, trust_remote_code)
        loaded.load_adapter(model, adapter_kwargs={"revision": revision})
    return loaded


def _auto_class(
    model: str, revision: str | None, trust_remote_code: bool
) -> type[AutoModelForCausalLM | AutoModelForImageTextToText]:
    """Choose the class that loads a model: some multimodal ones have no class for text alone."""
    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    is_remote = "AutoModelForCausalLM" in (config.to_dict().get("auto_map") or {})
    if not is_remote and config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForImageTextToText
    return AutoModelForCausalLM
