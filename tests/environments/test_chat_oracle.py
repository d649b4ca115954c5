# SPDX-License-Identifier: Apache-2.0

import sys
import time
from contextlib import ExitStack

import pytest

from benchmarks.chat_server import ChatServer
from trl_nlac.environments.twenty_questions import Answer, ChatOracle, TwentyQuestionsEnvironment


openai = pytest.importorskip("openai")


@pytest.fixture
def serve():
    """Start a server with these replies: texts, statuses other than 200, or seconds to sleep."""
    with ExitStack() as stack:

        def start(*replies: str | int | float) -> ChatServer:
            left = iter(replies)

            def answer(messages: list[dict]) -> str | int:
                reply = next(left)
                if isinstance(reply, float):
                    time.sleep(reply)
                return reply if isinstance(reply, int) else str(reply)

            server = ChatServer(answer)
            stack.enter_context(server.running())
            return server

        yield start


def make_oracle(server: ChatServer, **kwargs) -> ChatOracle:
    return ChatOracle("judge", server.url, api_key="secret", **kwargs)


def test_game(serve):
    server = serve("No", "yes.", "Unclear", "**Correct**")
    environment = TwentyQuestionsEnvironment(make_oracle(server))
    environment.reset(object="aardvark")
    assert environment.step("Is it a tool?").observation == "No. Questions left: 19."
    assert environment.step("Is it alive?").observation == "Yes. Questions left: 18."
    assert "did not understand" in environment.step("Tell me the word.").observation
    result = environment.step("Is it an aardvark?")
    assert result.reward == 1 and result.terminated
    assert server.keys[0] == "Bearer secret"
    first = server.requests[0]
    assert first["model"] == "judge" and first["temperature"] == 0
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert "aardvark" in first["messages"][0]["content"] and first["messages"][1]["content"] == "Is it a tool?"


def test_request_that_fails_is_sent_again(serve):
    server = serve(500, "Yes")
    assert make_oracle(server).answer("dog", "Is it alive?") is Answer.YES
    assert len(server.requests) == 2


def test_endpoint_that_hangs_is_a_failure(serve):
    with pytest.raises(openai.APITimeoutError):
        make_oracle(serve(1.0), timeout=0.2, max_retries=0).answer("dog", "Is it alive?")


def test_reply_that_is_no_answer_is_asked_for_again(serve):
    server = serve("Banana!", "No")
    assert make_oracle(server).answer("dog", "Is it a tool?") is Answer.NO
    assert [message["content"] for message in server.requests[1]["messages"][2:3]] == ["Banana!"]
    assert "exactly one word" in server.requests[1]["messages"][3]["content"]


def test_model_that_never_answers_is_a_failure(serve):
    server = serve("Banana!", "", "Perhaps")
    environment = TwentyQuestionsEnvironment(make_oracle(server, max_retries=2))
    environment.reset(object="dog")
    with pytest.raises(RuntimeError, match="'judge' replied 'Perhaps'"):
        environment.step("Is it a tool?")
    assert len(server.requests) == 3


def test_thoughts_are_no_answer(serve):
    server = serve("<think>\nYes or no? A dog is no tool.\n</think>\n\nNo.")
    oracle = make_oracle(server, request_kwargs={"max_tokens": 64, "temperature": 0.5})
    assert oracle.answer("dog", "Is it a tool?") is Answer.NO
    assert server.requests[0]["max_tokens"] == 64 and server.requests[0]["temperature"] == 0.5


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match=r"pip install trl-nlac\[openai\]"):
        ChatOracle("judge")
