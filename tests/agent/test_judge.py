# SPDX-License-Identifier: Apache-2.0

import json
import threading
import time
from functools import partial

import pytest
from helpers.testing_utils import Answering, make_roles, play

from benchmarks.chat_server import ChatServer
from trl_nlac import JudgeReward
from trl_nlac.agent.judge import parse_score, transcript
from trl_nlac.environments import EnvironmentFailure, StepResult
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.event_loop import finish


STATE = [{"role": "user", "content": "situ 2"}]


def said(text: str) -> list[dict]:
    return [{"role": "assistant", "content": text}]


class Judge:
    """Judges by the length of what the assistant said last, at most 10, after some answers without a score."""

    def __init__(self, num_unreadable: int = 0):
        self.num_unreadable = num_unreadable

    def __call__(self, messages: list[dict]) -> str:
        if self.num_unreadable:
            self.num_unreadable -= 1
            return "Good."
        last = messages[-1]["content"].rpartition("assistant: ")[2].partition("\n")[0]
        if last == "unjudged":
            return "I cannot say."
        return f"It has {len(last)} letters.\nScore: {min(10, len(last))}"


@pytest.mark.parametrize(
    "text, score",
    [
        ("Fine.\nScore: 7", 0.7),
        ("**Score: 10**", 1.0),
        ("score: 3.5/10.", 0.35),
        ("Score: 0 out of 10\nScore: 0", 0.0),
        ("Score: 11", None),
        ("Score: -3", None),
        ("Score: 3\nScore: 4", None),
        ("A score of 7 would be too much.", None),
        ("", None),
    ],
)
def test_scores(text, score):
    assert parse_score(text) == score


def test_transcripts():
    call = {"type": "function", "function": {"name": "route", "arguments": '{"team": "legal"}'}}
    messages = [{"role": "assistant", "content": "I do.", "tool_calls": [call]}, {"role": "tool", "content": "done"}]
    expected = 'user: situ 2\n\nassistant: I do.\n[calls route with {"team": "legal"}]\n\ntool: done'
    assert transcript("situ 2", messages) == transcript(STATE, messages) == expected
    parts = [{"type": "text", "text": "situ"}, {"type": "text", "text": "2"}]
    assert transcript([{"role": "user", "content": parts}], messages) == expected.replace("situ 2", "situ\n2")


def test_rewards_cache_and_cost(tmp_path):
    server, metrics = ChatServer(Judge()), {}
    with server.running() as url:
        make = partial(JudgeReward, url, "Short answers.", "teacher", cache=tmp_path / "scores" / "cache.jsonl")
        judge = make(price=(1.0, 2.0))
        completions = [said("ab"), said("abcd"), said("ab"), "abc"]
        scores = finish(judge([STATE] * 3 + ["situ 2"], completions, log_metric=metrics.__setitem__))
        assert scores == [0.2, 0.4, 0.2, 0.3]
        assert len(server.requests) == 3 and metrics["judge/judged"] == 3 and judge.cost == metrics["judge/cost"] == 0
        request = server.requests[0]
        assert "Short answers." in request["messages"][0]["content"] and request["model"] == "teacher"
        with (tmp_path / "scores" / "cache.jsonl").open("a") as file:
            file.write('{"key": "cut')
        again = make()
        assert finish(again([STATE], [said("abcd")])) == [0.4] and again.cost is None
        assert again.counts["cached"] == 1 and len(server.requests) == 3
        other = JudgeReward(url, "Long answers.", "teacher", cache=tmp_path / "scores" / "cache.jsonl")
        finish(other([STATE], [said("abcd")]))
        assert len(server.requests) == 4  # another rubric is another question
        assert finish(make()([STATE], [said("abcd")])) == [0.4]
        again = JudgeReward(url, "Long answers.", "teacher", cache=tmp_path / "scores" / "cache.jsonl")
        assert finish(again([STATE], [said("abcd")])) == [0.4]
        assert len(server.requests) == 4  # the line after the cut one was kept


def test_an_answer_without_a_score_is_asked_for_again():
    with ChatServer(Judge(num_unreadable=2)).running() as url:
        judge = JudgeReward(url, "Short answers.", "teacher", max_retries=2)
        assert finish(judge([STATE], [said("ab")])) == [0.2]


def test_no_more_requests_at_a_time_than_allowed():
    places = threading.Semaphore(2)

    def answer(messages: list[dict]) -> str:
        if not places.acquire(blocking=False):
            return "These are too many."
        time.sleep(0.05)
        places.release()
        return "Score: 5"

    with ChatServer(answer).running() as url:
        judge = JudgeReward(url, "Short answers.", "teacher", max_concurrency=2, max_retries=0)
        assert finish(judge([STATE] * 6, [said("a" * i) for i in range(6)])) == [0.5] * 6


def test_what_cannot_be_judged_fails_alone():
    with ChatServer(Judge()).running() as url:
        judge = JudgeReward(url, "Short answers.", "teacher", max_retries=0)
        roles, rewards = make_roles(["abc", "unjudged"]), EpisodeRewards([judge])
        ends = partial(Answering, StepResult("end", terminated=True))
        judged, failed = play([{}, {}], ends, roles, rewards=rewards, max_instances=2)
    assert judged.score == 0.3 and judged.terminated and judged.failure is None
    assert failed.failure.startswith("reward: EnvironmentFailure: the judge 'teacher' at http://127.0.0.1")
    assert "no line `Score: N`" in failed.failure and not failed.turns and not failed.terminated
    assert judge.counts["failed"] == judge.counts["judged"] == 1


@pytest.mark.parametrize(
    "usage, tokens", [({}, 0), (None, 0), ({"prompt_tokens": None}, 0), ({"prompt_tokens": 7}, 7)]
)
def test_a_server_need_not_count_tokens(usage, tokens):
    choice = {"message": {"role": "assistant", "content": "Score: 3"}}
    answer = json.dumps({"choices": [choice], "usage": usage}).encode()
    with ChatServer(lambda messages: answer).running() as url:
        judge = JudgeReward(url, "Short answers.", "teacher")
        assert finish(judge([STATE], [said("abc")])) == [0.3]
    assert judge.counts["prompt_tokens"] == tokens


def test_a_server_that_is_gone():
    judge = JudgeReward("http://127.0.0.1:9/v1", "Be short", "teacher", max_retries=0, api_key="sk-1234567890abcdefgh")
    (failure,) = finish(judge([STATE], [said("ab")]))
    assert isinstance(failure, EnvironmentFailure) and "APIConnectionError" in str(failure)


def test_what_is_no_conversation_is_a_failure():
    judge = JudgeReward("http://127.0.0.1:9/v1", "Be kind.", "judge")
    (failure,) = finish(judge([STATE], [[{"role": "tool", "content": "of nothing"}]]))
    assert isinstance(failure, EnvironmentFailure) and "the result of a tool that nothing called" in str(failure)


@pytest.mark.parametrize(
    "change",
    [{"rubric": " "}, {"model": ""}, {"max_concurrency": 0}, {"max_retries": -1}],
    ids=lambda change: next(iter(change)),
)
def test_arguments(change):
    arguments = {"endpoint": "http://127.0.0.1:9/v1", "rubric": "Short answers.", "model": "teacher", **change}
    with pytest.raises(ValueError, match=f"`{next(iter(change))}`"):
        JudgeReward(**arguments)
