# SPDX-License-Identifier: Apache-2.0

"""An agent whose model is on a server. `test_vllm_agent.py` has the same with real vLLM."""

import math

import pytest
import torch
from helpers.completions_server import CompletionsServer
from transformers import AutoTokenizer

from trl_nlac import NLACAgent
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.episodes.worker import EnvironmentWorker
from trl_nlac.generation.endpoint import EndpointEngine
from trl_nlac.generation.engine import FixedGenerator
from trl_nlac.options.role_options import RoleOptions


STATES = [[{"role": "user", "content": f"{request} 2"}] for request in ("situ", "dufa", "pave", "runo")]
PROPOSED = "route billing amber photo noon"
OPTIONS = dict(action_format="text", max_completion_length=48)


def load(backend: str, **kwargs) -> NLACAgent:
    return NLACAgent.from_pretrained(TINY_MODEL, backend, **{**OPTIONS, **kwargs})


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def server(request):
    """One server returns tokens and accepts forced ones, the other returns text and the likelihood of a prompt."""
    return CompletionsServer("tiny", owner=request.param, returns_tokens=request.param == "vllm", max_model_length=256)


def test_same_as_transformers(server):
    local = load("transformers", device="cpu")
    with server.running() as url:
        remote = load(url)
        assert remote.model is None
        for agent_of in (lambda a: a.act_all(STATES, refine=2), lambda a: a.act_all(STATES, num_candidates=3)):
            said = []
            for agent in (local, remote):
                torch.manual_seed(0)
                said.append(agent_of(agent))
            for one, other in zip(*said, strict=True):
                assert one.token_ids == other.token_ids and one.message == other.message
                assert [action for action, _ in one.attempts] == [action for action, _ in other.attempts]
                for mine, theirs in zip(one.candidates, other.candidates, strict=True):
                    assert mine[0] == theirs[0]
                    assert mine[1].verdict_score == pytest.approx(theirs[1].verdict_score, abs=1e-3)
        checks = []
        for agent in (local, remote):
            torch.manual_seed(1)
            checks.append(agent.check(STATES[0], PROPOSED))
        assert checks[0].reason == checks[1].reason
        assert checks[0].score == pytest.approx(checks[1].score, abs=1e-3)


def test_what_is_sent():
    """Requests have OpenAI's parameters, and others if they are not defaults. There are not too many at a time."""
    server = CompletionsServer("tiny", "other")
    with server.running() as url:
        tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
        engine = EndpointEngine(tokenizer, url, "tiny", max_concurrency=2)
        generator = FixedGenerator(engine, [tokenizer.eos_token_id])
        options = RoleOptions(**OPTIONS, min_p=0.0)
        NLACAgent(generator, ChatEncoder(tokenizer), options).act_all([*STATES, *STATES])
        load(url, backend_kwargs={"served_model_name": "other"}, top_k=5, min_p=0.1).act(STATES[0])
    assert server.most_at_once <= 2 and len(server.requests) == 9
    usual, special = server.requests[0], server.requests[-1]
    sampling = {"max_tokens", "temperature", "top_p", "seed"}
    assert set(usual) == {*("model", "prompt", "stop_token_ids", "return_token_ids", "skip_special_tokens"), *sampling}
    assert usual["model"] == "tiny" and special["model"] == "other"
    assert special["top_k"] == 5 and special["min_p"] == 0.1 and special["max_tokens"] == 48


def test_all_that_is_sampled_by_is_sent_to_vllm():
    """Which takes what is not sent from the model's own configuration."""
    server = CompletionsServer("tiny", owner="vllm", returns_tokens=True)
    with server.running() as url:
        load(url, top_k=0, min_p=0.0).act(STATES[0])
    sent = server.requests[0]
    assert (sent["top_k"], sent["min_p"], sent["repetition_penalty"]) == (0, 0.0, 1.0) and "detokenize" not in sent


def test_context(caplog):
    server = CompletionsServer("tiny", max_model_length=24)
    with server.running() as url:
        tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
        generator = FixedGenerator(EndpointEngine(tokenizer, url, "tiny", 2), [tokenizer.eos_token_id])
        agent = NLACAgent(generator, ChatEncoder(tokenizer), RoleOptions(**OPTIONS), COMPACT_PROMPTS)
        long = [{"role": "user", "content": "situ " * 40}]
        short, cut = agent.act_all([STATES[0], long])
    assert short.text and cut.action is None and cut.text == ""
    assert "1 of 2 prompts do not fit into vLLM's context of 24 tokens" in caplog.text
    assert all(len(request["prompt"]) + request["max_tokens"] <= 24 for request in server.requests)


def test_histories_fit_into_the_context():
    server = CompletionsServer("tiny", max_model_length=128)
    with server.running() as url:
        agent = load(url)
        said = [{"role": "assistant", "content": PROPOSED}, {"role": "user", "content": "refused needs ivory 1"}]
        assert agent.act([*STATES[0], *said * 12]).text
    (request,) = server.requests
    assert len(request["prompt"]) <= agent.options.max_prompt_length == 80
    assert request["max_tokens"] == 48


@pytest.mark.parametrize(("length", "expected"), [(128, 128), (None, math.inf)])
def test_an_adapter_has_the_context_of_its_base_model(length, expected):
    server = CompletionsServer("base", owner="vllm", max_model_length=length, adapters=["tuned"])
    with server.running() as url:
        agent = load(url, backend_kwargs={"served_model_name": "tuned"})
        assert agent.roles.generator.engine.max_model_length == expected
        agent.act([{"role": "user", "content": "situ " * 200}])
    if length is not None:
        assert all(len(request["prompt"]) + request["max_tokens"] <= length for request in server.requests)


def test_which_model():
    server = CompletionsServer("one", "two")
    with server.running() as url:
        with pytest.raises(ValueError, match=r"serves one, two, but not .*tiny_model.*served_model_name"):
            load(url)
        with pytest.raises(ValueError, match="serves one, two, but not 'three'"):
            load(url, backend_kwargs={"served_model_name": "three"})
        assert load(url, backend_kwargs={"served_model_name": "two"}).act(STATES[0]).text
    server = CompletionsServer(TINY_MODEL, "adapter")
    with server.running() as url:
        load(url).act(STATES[0])
    assert server.requests[0]["model"] == TINY_MODEL


def test_server_that_goes_away():
    server = CompletionsServer("tiny")
    with server.running() as url:
        agent = load(url, backend_kwargs={"max_retries": 0, "timeout": 20.0})
        agent.act(STATES[0])
    with pytest.raises(ConnectionError, match=r"No server answers at .*'timeout': ...}`, which is 20.0"):
        agent.act(STATES[0])


def test_no_server():
    with pytest.raises(ConnectionError, match=r"No server answers at `backend='http://127.0.0.1:9/v1'`"):
        load("http://127.0.0.1:9/v1", backend_kwargs={"max_retries": 0})


def test_other_threads_can_ask(server):
    """As reward functions and environments do, which have an event loop of their own."""
    with server.running() as url:
        agent = load(url)
        here = agent.act_all(STATES)
        worker = EnvironmentWorker("asks", object)
        try:
            there = worker.submit(lambda _: agent.act_all(STATES)).result(60)
        finally:
            worker.stop()
        assert len(here) == len(there) == len(agent.act_all(STATES)) == len(STATES)
