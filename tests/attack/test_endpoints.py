# SPDX-License-Identifier: Apache-2.0

"""Odd servers behind an OpenAI endpoint: each gives one line that names the server and what it did."""

import asyncio
import json
import time
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from helpers.cli_utils import ENVIRONMENT

from benchmarks.chat_server import FakeServer, JSONHandler
from trl_nlac import JudgeReward
from trl_nlac.cli.main import main
from trl_nlac.environments import EnvironmentFailure
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.endpoint import EndpointEngine, EndpointError


MODEL = {"id": "me", "object": "model", "created": 0, "owned_by": "vllm"}
MODELS = {"object": "list", "data": [MODEL]}
SECRET = "sk-abcdefghijklmnopqrstuvwxyz"


def choice(**values) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": "situ", "finish_reason": "stop", **values}]}


def chat(message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def with_logprobs(values: Any) -> dict[str, Any]:
    return choice(logprobs={"token_logprobs": values, "tokens": [], "text_offset": [], "top_logprobs": []})


class Raw:
    def __init__(self, body=b"", status=200, kind="application/json", headers=None, missing=0, seconds=0.0):
        self.body, self.status, self.missing, self.seconds = body, status, missing, seconds
        self.headers = {"Content-Type": kind, **(headers or {})}


BODIES = {
    "HTML": Raw(b"<html>\n<h1>Welcome to nginx</h1>\x1b[2J</html>", kind="text/html"),
    "HTML that calls itself JSON": Raw(b"<html></html>"),
    "nothing": Raw(),
    "no content": Raw(status=204),
    "half of a JSON object": Raw(b'{"choices": [{"te'),
    "fewer bytes than announced": Raw(b'{"choices": []}', missing=100),
    "bytes that are no text": Raw(b"\xff\xfe\x00\x01"),
    "gzip that is none": Raw(b"{}", headers={"Content-Encoding": "gzip"}),
    "events": Raw(b'data: {"choices": []}\n\ndata: [DONE]\n\n', kind="text/event-stream"),
    "null": Raw(b"null"),
    "a list": Raw(b"[1]"),
    "a text": Raw(b'"ok"'),
    "a number": Raw(b"9" * 5000),
    "deep nesting": Raw(b"[" * 100_000),
    "an error with status 200": Raw(json.dumps({"error": {"message": "overloaded"}}).encode()),
    "status 400": Raw(b'{"error": {"message": "no such field"}}', 400),
    "status 401": Raw(b'{"error": {"message": "wrong key ' + SECRET.encode() + b'"}}', 401),
    "status 404": Raw(b"not found", 404, "text/plain"),
    "status 422": Raw(b'{"detail": [{"loc": ["body"], "msg": "bad"}]}', 422),
    "status 429": Raw(b'{"error": "slow down"}', 429),
    "status 500": Raw(b"Traceback (most recent call last):\n" + b"  at line\n" * 1000, 500, "text/plain"),
    "status 503": Raw(b"", 503),
    "a redirect to itself": Raw(b"", 302, headers={"Location": "/v1/models"}),
    "silence": Raw(b"{}", seconds=2.0),
    "an object without anything": {},
}
LISTS = {
    "no models": {"object": "list", "data": []},
    "models that are null": {"data": None},
    "models without names": {"data": [{"object": "model"}]},
    "names that are numbers": {"data": [{**MODEL, "id": 7}]},
    "models as an object": {"data": {"me": MODEL}},
}
CHOICES = {
    "no choices": {"choices": []},
    "choices that are null": {"choices": None},
    "a choice that is null": {"choices": [None]},
    "choices as an object": {"choices": {"0": {}}},
}
COMPLETIONS = {
    "no text": choice(text=None),
    "text as a list": choice(text=["situ"]),
    "tokens as a text": choice(token_ids="1 2"),
    "tokens that are texts": choice(token_ids=["1"]),
    "tokens that are fractions": choice(token_ids=[1.5]),
    "tokens that are negative": choice(token_ids=[-1]),
    "tokens that are too large": choice(token_ids=[2**40]),
    "tokens that are flags": choice(token_ids=[True]),
}
SCORES = {
    "no log-likelihoods": choice(),
    "log-likelihoods that are null": choice(logprobs=None),
    "an empty list of log-likelihoods": with_logprobs([]),
    "a log-likelihood that is null": with_logprobs([None]),
    "a log-likelihood that is a text": with_logprobs(["-1"]),
    "a log-likelihood that is infinite": with_logprobs([float("-inf")]),
    "log-likelihoods as an object": with_logprobs({"a": 1}),
}
MESSAGES = {
    "no message": {"choices": [{"finish_reason": "stop"}]},
    "a message that is a text": chat("hello"),
    "content that is an object": chat({"role": "assistant", "content": {"text": "hello"}}),
}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Say nothing about a client that does not wait for its answer: other tests read what is printed."""


class _Handler(JSONHandler):
    def do_GET(self):
        self.give(self.of.models)

    def do_POST(self):
        self.read()
        self.give(self.of.answer)

    def give(self, answer: Any) -> None:
        if not isinstance(answer, Raw):
            return self.answer(answer)
        time.sleep(answer.seconds)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) + answer.missing))
        self.end_headers()
        self.wfile.write(answer.body)


class OddServer(FakeServer):
    """Answers as it is told: `models` to the list of models, `answer` to everything else."""

    handler, server, address = _Handler, _Server, "http://user:password1@127.0.0.1:{port}/v1"

    def __init__(self, answer: Any, models: Any = MODELS):
        self.answer = answer
        self.models = models


CLIENT = {"max_retries": 0, "timeout": 1.0, "api_key": SECRET}
PARAMS = {"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "seed": 1, "stop_token_ids": [1]}


def check(message: str, place: str = " at `backend='http://<hidden>@127.0.0.1:") -> None:
    """One line of readable length that names the server and gives away no secret."""
    assert place in message
    assert message.isprintable() and len(message) < 700
    assert "password1" not in message and SECRET not in message


def load(url: str, tokenizer) -> EndpointEngine:
    return EndpointEngine(tokenizer, url, "me", 4, **CLIENT)


@pytest.mark.parametrize("name", [*BODIES, *LISTS])
def test_lists_of_models(name, tokenizer):
    with OddServer({}, {**BODIES, **LISTS}[name]).running() as url, pytest.raises(EndpointError) as error:
        load(url, tokenizer)
    check(str(error.value))


@pytest.mark.parametrize("name", [*BODIES, *CHOICES, *COMPLETIONS])
def test_completions(name, tokenizer):
    with OddServer({**BODIES, **CHOICES, **COMPLETIONS}[name]).running() as url:
        engine = load(url, tokenizer)
        with pytest.raises(EndpointError) as error:
            engine.generate([[1, 2], [3]], [PARAMS, PARAMS], None, None)
    check(str(error.value))


@pytest.mark.parametrize("owner", ["vllm", "me"])
@pytest.mark.parametrize("name", [*CHOICES, *SCORES])
def test_scores(name, owner, tokenizer):
    models = {"data": [{**MODEL, "owned_by": owner}]}
    with OddServer({**CHOICES, **SCORES}[name], models).running() as url:
        engine = load(url, tokenizer)
        with pytest.raises(EndpointError) as error:
            engine.score([[1, 2]], [[3, 4]])
    check(str(error.value))


@pytest.mark.parametrize("name", [*BODIES, *CHOICES, *MESSAGES])
def test_judges(name):
    with OddServer({**BODIES, **CHOICES, **MESSAGES}[name]).running() as url:
        (failure,) = asyncio.run(JudgeReward(url, "Short answers.", "me", **CLIENT)(["situ"], ["route"]))
    assert isinstance(failure, EnvironmentFailure)
    check(str(failure), place="the judge 'me' at http://<hidden>@127.0.0.1:")


def test_what_is_merely_unusual(tokenizer):
    models = {"data": [{"id": "other"}, {"id": "me", "max_model_len": "long"}]}
    server = OddServer(choice(text="si\ud800tu", finish_reason=None), models)
    with server.running() as url:
        engine = load(url, tokenizer)
        assert engine.model == "me" and engine.max_model_length > 10**9
        (completion,) = engine.generate([[1]], [PARAMS], None, None)
        assert not completion.finished and all(0 <= i < len(tokenizer) for i in completion.token_ids)
        server.answer = choice(token_ids=[1] * 100)
        (completion,) = engine.generate([[1]], [PARAMS], None, None)
        assert completion.token_ids == [1] * 8 and not completion.finished
        server.answer = choice(token_ids=[])
        assert engine.generate([[1]], [PARAMS], None, None)[0].token_ids == []
        server.answer = chat({"role": "assistant", "content": "Fine.\udfff\nScore: 3"})
        assert asyncio.run(JudgeReward(url, "Short answers.", "me", **CLIENT)(["situ"], ["route"])) == [0.3]


def test_a_command_says_it_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rooms.py").write_text(ENVIRONMENT)
    words = ["--environment_factory", "rooms.py:Rooms", "--option", "action_format=text"]
    with OddServer(BODIES["status 401"]).running() as url:
        assert main(["play", TINY_MODEL, "--backend", url, *words, "--auto"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "refuses a request with status 401" in line and SECRET not in line and "password1" not in line
        assert main(["evaluate", TINY_MODEL, "--backend", url, *words, "--debug"]) == 2
        *traceback, line = capsys.readouterr().err.splitlines()
        assert line.startswith("trl-nlac evaluate: error: ") and "Traceback" in "".join(traceback)
        assert SECRET not in "".join(traceback) and "password1" not in "".join(traceback)
