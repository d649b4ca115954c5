# SPDX-License-Identifier: Apache-2.0

"""Makes tests faster, and the same wherever they are started, without a change to what they test."""

import gc
import importlib.metadata
import signal
from functools import cache

import pytest


# Accelerate reads it at each call of its `is_..._available`, some thirty times in a training step.
importlib.metadata.metadata = cache(importlib.metadata.metadata)

# A shell that starts the tests in the background has processes ignore it, also those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave out of garbage collection what was imported: each training begins with one, of 0.8 seconds otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    from trl_nlac.environments.embedded import TINY_MODEL

    return AutoTokenizer.from_pretrained(TINY_MODEL)


@pytest.fixture(scope="module")
def vllm_server(tmp_path_factory):
    from helpers.vllm_utils import Server, free_port

    server = Server(tmp_path_factory.mktemp("server") / "log.txt", free_port())
    server.start()
    server.wait()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def tiny_models_may_stammer(request, monkeypatch):
    """Let the embedded models play roles in prompts that they were not taught. The tests of that ask for it."""
    if "worked_examples" not in request.node.nodeid:
        monkeypatch.setattr("trl_nlac.method.worked_examples.ENOUGH", 0.0)
        monkeypatch.setattr("trl_nlac.method.worked_examples.LEAST", 0.0)
