# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import asyncio
import threading

import pytest
import torch

from trl_nlac import AsyncNLACAgent, NLACAgent
from trl_nlac.environments.embedded import TINY_MODEL


STATES = [[{"role": "user", "content": f"{request} 2"}] for request in ("situ", "dufa", "pave", "runo")]
PROPOSED = "route billing amber photo noon"


@pytest.fixture(scope="module")
def greedy():
    options = dict(action_format="text", max_completion_length=48, eval_temperature=0.0, critique_temperature=0.0)
    return NLACAgent.from_pretrained(TINY_MODEL, device="cpu", refine_temperature=0.0, **options)


@pytest.fixture
def batches(greedy, monkeypatch):
    """How many states each batch had in which actions were asked for."""
    sizes = []
    act_on = greedy.act_on

    def record(prompts, *options):
        sizes.append(len(prompts))
        return act_on(prompts, *options)

    monkeypatch.setattr(greedy, "act_on", record)
    return sizes


def test_together(greedy, batches):
    """Those who ask at the same time are answered at once, each as if it had asked alone."""
    agent = AsyncNLACAgent(greedy)

    async def ask():
        return await asyncio.gather(*[agent.act(messages, refine=1) for messages in STATES])

    turns = asyncio.run(ask())
    assert batches == [4]
    alone = [greedy.act(messages, refine=1) for messages in STATES]
    assert [turn.action for turn in turns] == [turn.action for turn in alone]
    assert len({turn.action for turn in turns}) > 1


def test_different_questions(greedy, batches):
    """Each kind in a batch of its own, and none larger than allowed."""
    agent = AsyncNLACAgent(greedy, max_batch_size=2)

    async def ask():
        return await asyncio.gather(
            *[agent.act(messages) for messages in STATES[:3]],
            agent.act(STATES[0], refine=1),
            agent.critique(STATES[0], PROPOSED),
            agent.check(STATES[0], PROPOSED),
            agent.refine(STATES[0], PROPOSED),
            agent.predict_futures(STATES[0], PROPOSED, k=1),
        )

    *turns, judgement, check, refined, futures = asyncio.run(ask())
    assert batches == [2, 1, 1]
    assert [turn.action for turn in turns] == [
        *(greedy.act(messages).action for messages in STATES[:3]),
        greedy.act(STATES[0], refine=1).action,
    ]
    assert judgement.critique == check.reason == greedy.critique(STATES[0], PROPOSED).critique
    assert refined.action == greedy.refine(STATES[0], PROPOSED).action
    assert futures == greedy.predict_futures(STATES[0], PROPOSED, k=1)


def test_whoever_comes_later_joins_the_next_batch(greedy, batches):
    agent = AsyncNLACAgent(greedy)

    async def ask(messages, delay):
        await asyncio.sleep(delay)
        return await agent.act(messages)

    async def main():
        return await asyncio.gather(ask(STATES[0], 0), *[ask(messages, 0.005) for messages in STATES[1:]])

    assert len(asyncio.run(main())) == 4
    assert batches == [1, 3]


def test_another_loop(greedy, batches):
    """The same agent after its first loop was closed."""
    agent = AsyncNLACAgent(greedy)
    said = [asyncio.run(agent.act(STATES[0])).action for _ in range(2)]
    assert said[0] == said[1] and batches == [1, 1]


def test_errors_reach_whoever_asked(greedy, monkeypatch):
    """All of the batch, and nobody after it; what is malformed does not even get into one."""
    agent = AsyncNLACAgent(greedy)
    act_on = greedy.act_on
    calls = []

    def fail_once(prompts, *options):
        calls.append(len(prompts))
        if len(calls) == 1:
            raise ConnectionError("the server is gone")
        return act_on(prompts, *options)

    monkeypatch.setattr(greedy, "act_on", fail_once)

    async def ask():
        asked = [agent.act(messages) for messages in (*STATES[:2], [])]
        first = await asyncio.gather(*asked, return_exceptions=True)
        return first, await agent.act(STATES[0])

    (*lost, malformed), answer = asyncio.run(ask())
    assert [str(error) for error in lost] == ["the server is gone"] * 2
    assert isinstance(malformed, ValueError) and calls == [2, 1]
    assert answer.action.startswith("route")


def test_who_waits_no_more(greedy, batches, monkeypatch):
    """Is not answered, and does not disturb the others."""
    agent, act_on = AsyncNLACAgent(greedy), greedy.act_on
    at_work, may_answer = threading.Event(), threading.Event()

    def when_allowed(*args):
        at_work.set()
        assert may_answer.wait(60)
        return act_on(*args)

    monkeypatch.setattr(greedy, "act_on", when_allowed)

    async def ask():
        first = asyncio.ensure_future(agent.act(STATES[0]))
        assert await asyncio.to_thread(at_work.wait, 60)
        given_up, other = (asyncio.ensure_future(agent.act(messages)) for messages in STATES[1:3])
        await asyncio.sleep(0)
        given_up.cancel()
        first.cancel()
        may_answer.set()
        return await asyncio.gather(first, given_up, other, return_exceptions=True)

    *cancelled, answer = asyncio.run(ask())
    assert all(isinstance(error, asyncio.CancelledError) for error in cancelled)
    assert answer.action == greedy.act(STATES[2]).action and batches[:2] == [1, 1]


def test_sampling_in_a_batch():
    """What one conversation samples does not depend on another of the batch."""
    agent = AsyncNLACAgent(NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text"))

    async def ask(number):
        torch.manual_seed(0)
        return await asyncio.gather(*[agent.act(messages) for messages in STATES[:number]])

    assert asyncio.run(ask(4))[:2] == asyncio.run(ask(2))


def test_batch_size(greedy):
    with pytest.raises(ValueError, match="`max_batch_size` must be at least 1, got 0"):
        AsyncNLACAgent(greedy, max_batch_size=0)
