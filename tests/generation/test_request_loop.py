# SPDX-License-Identifier: Apache-2.0

"""The thread that takes requests to vLLM, with stand-ins for vLLM and for a GPU's streams."""

import sys
import threading
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch


class Engine:
    def __init__(self):
        self.asked: list[dict] = []
        self.streams: list[str] = []  # in which it takes steps

    def add_request(self, number, prompt, params, lora_request=None):
        self.asked.append({"number": number, **prompt})

    def step(self):
        if torch.cuda.is_available():
            self.streams.append(torch.cuda.current_stream())
        answer = SimpleNamespace(token_ids=[1], finish_reason="stop")
        own = self.asked[-1]["number"]
        return [SimpleNamespace(finished=True, request_id=own, outputs=[answer], num_cached_tokens=0)]


@pytest.fixture
def local(monkeypatch):
    names = ["local", "request_loop"]
    for name in ("vllm", "vllm.lora", "vllm.lora.request", "vllm.sampling_params"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    for name in names:
        monkeypatch.delitem(sys.modules, f"trl_nlac.generation.vllm.{name}", raising=False)
    yield import_module("trl_nlac.generation.vllm.local")
    for name in names:
        sys.modules.pop(f"trl_nlac.generation.vllm.{name}")


@pytest.fixture
def engine(local):
    found = local.LocalEngine()
    found.llm = SimpleNamespace(llm_engine=Engine())
    return found


def test_the_thread_has_the_stream_in_which_weights_are_loaded(local, engine, monkeypatch):
    """A thread has the default stream and the first device, unless others are set."""
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
    engine.requests = local.RequestLoop(engine.llm)
    assert engine.generate([[1, 2]], [{}], None, None)[0].token_ids == [1]
    assert engine.llm.llm_engine.streams == [(1, "of vLLM")]


def test_prefixes_of_other_weights_are_not_reused(local, engine):
    engine.requests = local.RequestLoop(engine.llm)
    for _ in range(2):
        engine.generate([[1, 2]], [{}], None, None)
        engine.version += 1
    first, second = (request["cache_salt"] for request in engine.llm.llm_engine.asked)
    assert first and second and first != second
