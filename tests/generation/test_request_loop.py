# SPDX-License-Identifier: Apache-2.0

"""The thread that takes requests to vLLM, with stand-ins for vLLM and for a GPU's streams."""

import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest
import torch
from peft import LoraConfig

from trl_nlac.private_names import VLLMGeneration


class Engine:
    def __init__(self, runner: SimpleNamespace | None = None):
        self.model_executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))

    def add_request(self, number, prompt, params, lora_request=None):
        self.number, self.prompt = number, prompt

    def step(self):
        self.stream = torch.cuda.current_stream()
        return [SimpleNamespace(finished=True, request_id=self.number)]


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    """The modules for vLLM by name, with a stand-in for it."""
    names = ("vllm", "vllm.lora", "vllm.lora.request", "vllm.platforms", "vllm.sampling_params")
    with patch.dict(sys.modules, dict.fromkeys(names, MagicMock())):
        parts = ("request_loop", "colocate", "offline")
        yield {part: import_module(f"trl_nlac.generation.vllm.{part}") for part in parts}


def test_the_thread_has_the_stream_in_which_weights_are_loaded(monkeypatch, modules):
    """A thread has the default stream and the first device, unless others are set."""
    module = modules["request_loop"]
    here = threading.local()
    fakes = {
        "is_available": lambda: True,
        "current_device": lambda: vars(here).get("device", 0),
        "set_device": lambda device: setattr(here, "device", device),
        "current_stream": lambda device=None: (vars(here).get("device", 0), vars(here).get("stream", "default")),
        "set_stream": lambda stream: setattr(here, "stream", stream[1]),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    torch.cuda.set_device(1)
    torch.cuda.set_stream((1, "of vLLM"))  # as vLLM does in the thread that builds it
    engine = Engine()
    loop = module.RequestLoop(SimpleNamespace(llm_engine=engine))
    request = module.Request([1, 2], MagicMock(), None, "7")
    loop.submit([request])
    assert request.output.result(20).finished and engine.stream == (1, "of vLLM")
    assert engine.prompt == {"prompt_token_ids": [1, 2], "cache_salt": "7"}  # no prefix of other weights is reused


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_prefix_of_earlier_weights_is_reused(monkeypatch, modules, device):
    """Though vLLM says that it has not emptied its cache."""
    monkeypatch.setattr(VLLMGeneration, "sync_weights", lambda self: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    runner = SimpleNamespace(device=torch.device(device), reload_weights=lambda weights_iterator: None)
    kind, salts = modules["colocate"].ColocatedEngine, []
    colocated, engine = kind.__new__(kind), Engine(runner)
    colocated.llm = SimpleNamespace(llm_engine=engine, reset_prefix_cache=lambda: False)
    colocated.requests, colocated.sleep_level = modules["request_loop"].RequestLoop(colocated.llm), 0
    for _ in range(2):
        for _ in range(2):
            colocated.ask([[1, 2]], [MagicMock()], None)
            salts.append(engine.prompt["cache_salt"])
        colocated.sync_weights()
    assert salts[0] == salts[1] != salts[2] == salts[3]


def test_the_adapter_of_an_agent_in_float32_is_refused(tmp_path, monkeypatch, modules):
    LoraConfig(r=4).save_pretrained(tmp_path)
    monkeypatch.setattr(modules["offline"].current_platform, "device_type", "cuda")
    with pytest.raises(ValueError, match="in float32. Set `bf16=True`, for an agent `dtype='bfloat16'`"):
        modules["offline"].OfflineEngine(str(tmp_path), dtype="float32")
