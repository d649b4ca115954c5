# SPDX-License-Identifier: Apache-2.0

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from helpers.testing_utils import DESK
from openai import APITimeoutError, AuthenticationError, BadRequestError, InternalServerError, NotFoundError, OpenAI

from trl_nlac import NLACAgent
from trl_nlac.agent.guard import Guard
from trl_nlac.agent.serving import ServedAgent
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.gateway.server import Server
from trl_nlac.generation.endpoint import EndpointError


GREEDY = {role: {"temperature": 0.0} for role in ("policy", "evaluation", "critic", "refine")}
STATE = [{"role": "user", "content": f"{DESK.requests[0]} 2"}]


@pytest.fixture(scope="module")
def agent():
    return NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="tool_call", role_sampling=GREEDY)


@contextmanager
def serving(served: ServedAgent) -> Iterator[OpenAI]:
    server = Server()
    key = server.open(served, "sk-mine")
    with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        yield client
    server.close(key)


@pytest.fixture(scope="module")
def client(agent):
    with serving(ServedAgent(agent, Guard(-1.0, 1.0))) as client:
        yield client


def ask(client, **kwargs):
    return client.chat.completions.create(model="policy", messages=STATE, tools=[TOOL], **kwargs)


class TestAnswers:
    def test_it_acts_as_the_agent_does(self, agent, client):
        (call,) = ask(client).choices[0].message.tool_calls
        acted = json.loads(agent.act(STATE, [TOOL]).action)
        assert {"name": call.function.name, "arguments": json.loads(call.function.arguments)} == acted
        text = client.responses.create(model="policy", input=STATE[0]["content"])
        assert text.output_text == agent.act(STATE).action

    def test_what_a_request_does_not_say(self, agent):
        served, turn, asked = ServedAgent(agent, refine=3, num_candidates=2), agent.act(STATE, [TOOL]), []

        async def act(messages, tools, *numbers):
            asked.append(numbers)
            return turn

        served.agent.act = act
        with serving(served) as client:
            ask(client)
            ask(client, extra_body={"refine": 0})
        assert asked == [(3, 2), (0, 2)]

    def test_a_text_of_stop_ends_an_answer(self):
        options = {"action_format": "text", "max_completion_length": 4, "temperature": 0.0}
        agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", **options)
        with serving(ServedAgent(agent)) as client:
            asked = {"model": "policy", "messages": STATE}
            whole = client.chat.completions.create(**asked).choices[0]
            text = whole.message.content
            chosen = client.chat.completions.create(**asked, stop=[text[2:]]).choices[0]
        assert whole.finish_reason == "length" and len(text) > 2
        assert (chosen.message.content, chosen.finish_reason) == (text[:2], "stop")

    def test_clients_that_are_gone_get_no_answer(self, agent, monkeypatch):
        act_on, batches = agent.act_on, []
        began, may_answer = threading.Event(), threading.Event()

        def wait(prompts, *options):
            batches.append(len(prompts))
            began.set()
            assert may_answer.wait(60)
            return act_on(prompts, *options)

        monkeypatch.setattr(agent, "act_on", wait)
        served = ServedAgent(agent)
        with serving(served) as client, ThreadPoolExecutor(1) as threads:
            first = threads.submit(ask, client)
            assert began.wait(60)
            with pytest.raises(APITimeoutError):
                ask(client.with_options(timeout=0.2))
            end = time.monotonic() + 10
            while len(served._tasks) > 1 and time.monotonic() < end:
                time.sleep(0.01)
            may_answer.set()
            assert first.result().choices and ask(client).choices
        assert batches == [1, 1]

    def test_an_agent_that_exits_is_an_error_of_the_server(self, agent, client, monkeypatch):
        def leave(*args):
            sys.exit(1)

        with monkeypatch.context() as patch, pytest.raises(InternalServerError):
            patch.setattr(agent, "act_on", leave)
            ask(client.with_options(timeout=20))
        assert ask(client).choices

    def test_a_server_of_the_model_that_is_gone(self, agent, client, monkeypatch, caplog):
        def fail(*args):
            raise EndpointError("No server answers at `backend='http://localhost:1/v1'`.")

        with monkeypatch.context() as patch, pytest.raises(InternalServerError, match="model's server") as caught:
            patch.setattr(agent, "act_on", fail)
            ask(client.with_options(timeout=20))
        assert caught.value.status_code == 502 and "localhost" not in str(caught.value)
        assert "No server answers at" in caplog.text
        assert ask(client).choices

    def test_what_is_refused(self, client):
        for wrong in ({"refine": -1}, {"refine": "1"}, {"num_candidates": 0}, {"refine": 10**9}):
            with pytest.raises(BadRequestError, match=f"`{next(iter(wrong))}` must be a whole number"):
                ask(client, extra_body=wrong)
        with pytest.raises(AuthenticationError):
            ask(client.with_options(api_key="sk-other"))
        with pytest.raises(NotFoundError, match="agents in training"):  # whose long body was read
            client.post("/reward", body={"reward": 1.0, "note": "x" * 2 * 2**20}, cast_to=httpx.Response)


class TestGuard:
    @staticmethod
    def judge(client, action, **kwargs) -> dict:
        body = {"messages": STATE, "action": action, "tools": [TOOL], **kwargs}
        headers = {"Authorization": f"Bearer {client.api_key}"}
        return httpx.post(f"{client.base_url}guard", json=body, headers=headers, timeout=60).raise_for_status().json()

    def test_decisions_are_those_of_the_critic(self, agent, client):
        seen = set()
        for team in ("billing", "legal", "claims"):
            arguments = {"team": team, "form": "amber", "proof": "photo", "time": "noon"}
            function = {"name": "route", "arguments": json.dumps(arguments)}
            action = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
            said = {**action, "content": ""}
            judged, judgement = self.judge(client, action), agent.critique(STATE, said, [TOOL])
            assert judged["score"] == pytest.approx(judgement.verdict_score, abs=1e-3)
            assert judged["critique"] == judgement.critique
            assert judged["decision"] == Guard(-1.0, 1.0).decide(judgement)
            seen.add(round(judged["score"], 3))
        assert len(seen) > 1

    @pytest.mark.parametrize(
        "body",
        [{"action": None}, {"action": " "}, {"action": {"role": "user", "content": "x"}}, {"messages": []}],
        ids=str,
    )
    def test_what_is_no_action(self, client, body):
        with pytest.raises(httpx.HTTPStatusError) as refused:
            self.judge(client, **{"action": "take red", **body})
        assert refused.value.response.status_code == 400
        assert f"`{next(iter(body))}`" in refused.value.response.json()["error"]["message"]


def test_the_command():
    command = [sys.executable, "-m", "trl_nlac", "serve", TINY_MODEL, "--port", "0", "--option", "action_format=text"]
    variables = {**os.environ, "NLAC_API_KEY": "sk-mine-and-secret-0123", "HF_HUB_OFFLINE": "1"}
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables, cwd=root) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[1] == "Key: the value of NLAC_API_KEY\n" and "not calibrated" in lines[2]
            url = lines[0].split(" at ")[1].strip()
            with OpenAI(base_url=url, api_key="sk-mine-and-secret-0123") as client:
                assert ask(client).choices[0].message.content
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
