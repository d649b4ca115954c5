# SPDX-License-Identifier: Apache-2.0

"""An agent for many conversations at the same time."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from ..types import Judgement, Message
from .agent import NLACAgent
from .agent_action import AgentAction, Check


class _Question(NamedTuple):
    """A waiting call, and the method that answers it together with others that have the same options."""

    answer_all: Callable[..., list[Any]]
    options: tuple
    content: Any
    answer: asyncio.Future


class AsyncNLACAgent:
    """
    The methods of [`NLACAgent`] for one conversation as coroutines, for a server or for many environments. Calls that
    wait at the same time, of one method with the same numbers, are answered as one batch in a thread: thousands of
    conversations cost little more than their tokens, with every backend.

    Example:

    ```python
    import asyncio

    from trl_nlac import AsyncNLACAgent, NLACAgent

    agent = AsyncNLACAgent(NLACAgent.from_pretrained("my-agent"))


    async def answer(request: str) -> str:
        turn = await agent.act([{"role": "user", "content": request}], refine=1)
        return turn.text


    async def main():
        print(await asyncio.gather(*[answer(f"situ {attempts}") for attempts in (1, 2)]))


    asyncio.run(main())
    ```

    If an answer fails, for example because a server is gone, all calls of its batch raise the error.

    Args:
        agent ([`NLACAgent`]):
            The agent.
        max_batch_size (`int`, *optional*, defaults to `256`):
            Largest number of calls that are answered together.

    Raises:
        ValueError: If `max_batch_size` is less than 1.
    """

    def __init__(self, agent: NLACAgent, max_batch_size: int = 256):
        if max_batch_size < 1:
            raise ValueError(f"`max_batch_size` must be at least 1, got {max_batch_size}.")
        self.agent = agent
        self.max_batch_size = max_batch_size
        self._waiting: list[_Question] = []
        self._serving: asyncio.Task | None = None

    async def act(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
        judge: bool = False,
    ) -> AgentAction:
        """As [`NLACAgent.act`]."""
        prompt = self.agent.encode(messages, tools)
        return await self._ask(self.agent.act_on, (refine, num_candidates, alpha, judge), prompt)

    async def refine(
        self,
        messages: list[Message],
        action: str | Message | None = None,
        rounds: int = 1,
        tools: list[dict[str, Any]] | None = None,
    ) -> AgentAction:
        """As [`NLACAgent.refine`]."""
        return await self._ask(self.agent.refine_on, (rounds,), self.agent.proposed(messages, action, tools))

    async def critique(
        self, messages: list[Message], action: str | Message | None = None, tools: list[dict[str, Any]] | None = None
    ) -> Judgement | None:
        """As [`NLACAgent.critique`]."""
        return await self._ask(self.agent.critique_on, (), self.agent.proposed(messages, action, tools))

    async def check(
        self,
        messages: list[Message],
        proposed_action: str | Message,
        tools: list[dict[str, Any]] | None = None,
        threshold: float = 0.0,
    ) -> Check:
        """As [`NLACAgent.check`]."""
        return Check.of(await self.critique(messages, proposed_action, tools), threshold)

    async def predict_futures(
        self,
        messages: list[Message],
        action: str | Message | None = None,
        k: int = 4,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[str]:
        """As [`NLACAgent.predict_futures`]."""
        return await self._ask(self.agent.predict_futures_on, (k,), self.agent.proposed(messages, action, tools))

    async def _ask(self, answer_all: Callable[..., list[Any]], options: tuple, content: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Question(answer_all, options, content, answer))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.ensure_future(self._serve())
        return await answer

    async def _serve(self) -> None:
        """Answer waiting calls, batch by batch, until there are none."""
        await asyncio.sleep(0)  # so that calls of the same moment join the batch
        while waiting := [question for question in self._waiting if not question.answer.cancelled()]:
            kind = waiting[0][:2]
            batch = [question for question in waiting if question[:2] == kind][: self.max_batch_size]
            self._waiting = [question for question in waiting if question not in batch]
            answer_all, options = kind
            try:
                answers = await asyncio.to_thread(_call, answer_all, [question.content for question in batch], options)
            except Exception as error:
                answers = [error] * len(batch)
            for question, answer in zip(batch, answers, strict=True):
                if question.answer.cancelled():
                    continue
                if isinstance(answer, Exception):
                    question.answer.set_exception(answer)
                else:
                    question.answer.set_result(answer)


def _call(answer_all: Callable[..., list[Any]], contents: list[Any], options: tuple) -> list[Any]:
    """Answer calls. What would end an event loop, as SystemExit does, is raised as an error like others."""
    try:
        return answer_all(contents, *options)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"The agent failed: {type(error).__name__}: {error}") from error
