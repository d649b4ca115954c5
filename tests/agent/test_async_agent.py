# SPDX-License-Identifier: Apache-2.0

import asyncio
import threading

import pytest
import torch

from trl_nlac import AsyncNLACAgent, NLACAgent
from trl_nlac.environments.embedded import TINY_MODEL


STATES = [[{"role": "user", "content": f"{request} 2"}] for request in ("situ", "dufa", "pave", "runo")]
PROPOSED = "route billing amber photo noon"


class RecordingAgent(NLACAgent):
    """Keeps the number of states of each batch in which it acts."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches: list[int] = []

    def act_on(self, prompts, *options):
        self.batches.append(len(prompts))
        return super().act_on(prompts, *options)


def load(agent_class: type[NLACAgent] = RecordingAgent) -> NLACAgent:
    greedy = {role: {"temperature": 0.0} for role in ("evaluation", "critic", "refine")}
    options = dict(action_format="text", max_completion_length=48, role_sampling=greedy)
    return agent_class.from_pretrained(TINY_MODEL, device="cpu", **options)


@pytest.fixture
def greedy():
    return load()


def test_together(greedy):
    agent = AsyncNLACAgent(greedy)

    async def ask():
        return await asyncio.gather(*[agent.act(messages, refine=1) for messages in STATES])

    turns = asyncio.run(ask())
    assert greedy.batches == [4]
    alone = [greedy.act(messages, refine=1) for messages in STATES]
    assert [turn.action for turn in turns] == [turn.action for turn in alone]
    assert len({turn.action for turn in turns}) > 1


def test_different_questions(greedy):
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
    assert greedy.batches == [2, 1, 1]
    assert [turn.action for turn in turns] == [
        *(greedy.act(messages).action for messages in STATES[:3]),
        greedy.act(STATES[0], refine=1).action,
    ]
    assert judgement.critique == check.reason == greedy.critique(STATES[0], PROPOSED).critique
    assert refined.action == greedy.refine(STATES[0], PROPOSED).action
    assert futures == greedy.predict_futures(STATES[0], PROPOSED, k=1)


def test_later_calls_join_the_next_batch(greedy):
    agent = AsyncNLACAgent(greedy)

    async def ask(messages, delay):
        await asyncio.sleep(delay)
        return await agent.act(messages)

    async def main():
        return await asyncio.gather(ask(STATES[0], 0), *[ask(messages, 0.005) for messages in STATES[1:]])

    assert len(asyncio.run(main())) == 4
    assert greedy.batches == [1, 3]


def test_another_loop(greedy):
    agent = AsyncNLACAgent(greedy)
    said = [asyncio.run(agent.act(STATES[0])).action for _ in range(2)]
    assert said[0] == said[1] and greedy.batches == [1, 1]


class FailingOnce(RecordingAgent):
    def act_on(self, prompts, *options):
        answers = super().act_on(prompts, *options)
        if len(self.batches) == 1:
            raise ConnectionError("the server is gone")
        return answers


def test_errors_reach_the_callers():
    failing = load(FailingOnce)
    agent = AsyncNLACAgent(failing)

    async def ask():
        asked = [agent.act(messages) for messages in (*STATES[:2], [])]
        first = await asyncio.gather(*asked, return_exceptions=True)
        return first, await agent.act(STATES[0])

    (*lost, malformed), answer = asyncio.run(ask())
    assert [str(error) for error in lost] == ["the server is gone"] * 2
    assert isinstance(malformed, ValueError) and failing.batches == [2, 1]
    assert answer.action.startswith("route")


class Waiting(RecordingAgent):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.at_work, self.may_answer = threading.Event(), threading.Event()

    def act_on(self, *args):
        self.at_work.set()
        assert self.may_answer.wait(60)
        return super().act_on(*args)


def test_cancelled_calls(greedy):
    waiting = load(Waiting)
    agent = AsyncNLACAgent(waiting)

    async def ask():
        first = asyncio.ensure_future(agent.act(STATES[0]))
        assert await asyncio.to_thread(waiting.at_work.wait, 60)
        given_up, other = (asyncio.ensure_future(agent.act(messages)) for messages in STATES[1:3])
        await asyncio.sleep(0)
        given_up.cancel()
        first.cancel()
        waiting.may_answer.set()
        return await asyncio.gather(first, given_up, other, return_exceptions=True)

    *cancelled, answer = asyncio.run(ask())
    assert all(isinstance(error, asyncio.CancelledError) for error in cancelled)
    assert answer.action == greedy.act(STATES[2]).action and waiting.batches == [1, 1]


def test_sampling_in_a_batch():
    agent = AsyncNLACAgent(NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text"))

    async def ask(number):
        torch.manual_seed(0)
        return await asyncio.gather(*[agent.act(messages) for messages in STATES[:number]])

    assert asyncio.run(ask(4))[:2] == asyncio.run(ask(2))


def test_batch_size(greedy):
    with pytest.raises(ValueError, match="`max_batch_size` must be at least 1, got 0"):
        AsyncNLACAgent(greedy, max_batch_size=0)
