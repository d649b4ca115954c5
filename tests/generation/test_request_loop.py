# SPDX-License-Identifier: Apache-2.0

"""The thread that takes requests to vLLM, with stand-ins for vLLM and for a GPU's streams."""

import sys
import threading
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import torch


class Engine:
    def add_request(self, number, prompt, params, lora_request=None):
        self.number, self.prompt = number, prompt

    def step(self):
        self.stream = torch.cuda.current_stream()
        return [SimpleNamespace(finished=True, request_id=self.number)]


def test_the_thread_has_the_stream_in_which_weights_are_loaded(monkeypatch):
    """A thread has the default stream and the first device, unless others are set."""
    vllm = dict.fromkeys(("vllm", "vllm.lora", "vllm.lora.request", "vllm.sampling_params"), MagicMock())
    with patch.dict(sys.modules, vllm):
        module = import_module("trl_nlac.generation.vllm.request_loop")
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
    loop, request = (
        module.RequestLoop(SimpleNamespace(llm_engine=engine)),
        module.Request([1, 2], MagicMock(), None, "7"),
    )
    loop.submit([request])
    assert request.output.result(20).finished and engine.stream == (1, "of vLLM")
    assert engine.prompt == {"prompt_token_ids": [1, 2], "cache_salt": "7"}  # no prefix of other weights is reused
