# SPDX-License-Identifier: Apache-2.0

"""A vLLM server that dies or answers garbage while episodes are played beside training."""

import pytest
from helpers.api_processes import APIProcesses
from helpers.testing_utils import at, make_trainer
from trl.generation import vllm_client

from benchmarks.tiny_engine import BESIDE
from trl_nlac.generation import loading
from trl_nlac.generation.vllm import server_engine


ODD = {
    "no JSON": b"<html>502 Bad Gateway</html>",
    "no text": b"\xff\xfe\x00",
    "no object": b"[]",
    "no choice": b'{"choices": [], "usage": {}}',
    "no usage": b'{"choices": [{"token_ids": [5], "finish_reason": "stop"}]}',
    "words as tokens": b'{"choices": [{"token_ids": ["a"], "finish_reason": "stop"}], "usage": {}}',
    "nothing as tokens": b'{"choices": [{"token_ids": null, "finish_reason": "stop"}], "usage": {}}',
    "half": b'{"choices": [{"token_ids": [5',
    "levels": b"[" * 100_000,
    "a closed connection": None,
}


def make(tmp_path, monkeypatch, url: str):
    for module in (loading, vllm_client):
        monkeypatch.setattr(module, "is_vllm_available", lambda: True)  # the client needs none
    of_server = {"vllm_server_base_url": url, "vllm_server_weights_dir": str(tmp_path / "weights")}
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2, "max_turns": 2, "vllm_server_timeout": 1.0}
    return make_trainer(tmp_path / "run", {**BESIDE, **of_server, **options})


def test_odd_answers_are_asked_for_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(server_engine, "_MAX_ATTEMPTS", 1 + len(ODD))  # one request can get them all
    server = APIProcesses(1)
    with server.running() as url:
        trainer = make(tmp_path, monkeypatch, url)
        # In the middle of what is played beside training.
        trainer.add_callback(at("step_begin", lambda: server.odd.extend(ODD.values()), 2))
        trainer.train()
    assert trainer.state.global_step == 3 and not server.odd
    assert "was lost" in caplog.text and "answered /v1/completions with what vLLM does not: '<html>502" in caplog.text


@pytest.mark.parametrize("name", ["no JSON", "a closed connection"])
def test_a_server_that_answers_nothing_else_is_named(tmp_path, monkeypatch, name):
    server = APIProcesses(1)
    with server.running() as url:
        trainer = make(tmp_path, monkeypatch, url)
        trainer.add_callback(at("step_begin", lambda: server.odd.extend([ODD[name]] * 1000), 2))
        with pytest.raises(RuntimeError, match=f"{url} was lost 4 times in a row"):
            trainer.train()
        server.odd.clear()
        trainer = make(tmp_path, monkeypatch, url)
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.global_step == 3
