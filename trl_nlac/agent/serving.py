# SPDX-License-Identifier: Apache-2.0

"""An agent behind a server with OpenAI's interfaces."""

import asyncio
import logging
from typing import Any

from ..chat.tool_calls import parse_tool_calls
from ..gateway.chat_requests import Proposal, Question, Reply, RequestRefused, reply_message
from ..gateway.server import Request
from ..terminal import printable_traceback
from .agent import NLACAgent
from .agent_action import AgentAction
from .async_agent import AsyncNLACAgent
from .guard import Guard


logger = logging.getLogger(__name__)

MAX_NUMBER = 64  # of rounds of refinement, and of candidates


class ServedAgent:
    """
    Answers the requests of a [`~gateway.server.Server`] with an agent. Those that wait are answered together. `refine`
    and `num_candidates` count where a request does not say. Without a `guard`, the default thresholds decide on
    proposed actions. Unless it `refuses`, it abstains where it would block.
    """

    def __init__(
        self,
        agent: NLACAgent,
        guard: Guard | None = None,
        refine: int = 0,
        num_candidates: int = 1,
        refuses: bool = True,
    ):
        self.agent = AsyncNLACAgent(agent)
        self.guard = guard or Guard()
        self.refine = refine
        self.num_candidates = num_candidates
        self.refuses = refuses
        self._tasks: set[asyncio.Task] = set()

    def ask(self, request: Request[Question, Reply]) -> None:
        """Take a question. `refine` and `num_candidates` in its body, `extra_body` of OpenAI's client, count first."""
        self._start(request, self._answer(request.question))

    def judge(self, request: Request[Proposal, dict[str, Any]]) -> None:
        """Take an action that is to be judged."""
        self._start(request, self._decide(request.question))

    def pay(self, reward: float) -> None:
        """Refuse a reward."""
        raise RequestRefused("`/reward` is of agents in training.", status=404)

    def _start(self, request: Request, work) -> None:
        task = asyncio.ensure_future(self._finish(request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        request.future.add_done_callback(lambda future: future.cancelled() and task.cancel())  # the client is gone

    async def _finish(self, request: Request, work) -> None:
        try:
            request.reply(await work)
        except ValueError as error:  # messages that are no conversation, or too long
            request.refuse(RequestRefused(str(error), "messages"))
        except ConnectionError as error:  # of the model's server: that of the client is not seen here
            logger.warning("The model's server does not answer.\n%s", printable_traceback(error))
            request.refuse(RequestRefused("The model's server does not answer.", status=502))
        except Exception as error:
            request.refuse(error)

    async def _answer(self, question: Question) -> Reply:
        refine = _number(question.body, "refine", self.refine, least=0)
        num_candidates = _number(question.body, "num_candidates", self.num_candidates, least=1)
        turn = await self.agent.act(question.messages, question.tools, refine, num_candidates)
        calls = parse_tool_calls(turn.action) if question.tools and turn.action is not None else []
        calls = calls if question.takes_several_calls else calls[:1]
        content = _content(turn, bool(calls))
        is_stopped = any(text in content for text in question.stop)
        message = reply_message(content, calls, question.stop)
        prompt = self.agent.agent.encode(question.messages, question.tools)
        return Reply(message, prompt.num_tokens, len(turn.token_ids), turn.finished or is_stopped)

    async def _decide(self, proposal: Proposal) -> dict[str, Any]:
        judgement = await self.agent.critique(proposal.messages, proposal.action, proposal.tools)
        decision = self.guard.decide(judgement)
        return {
            "object": "guard",
            "decision": "abstain" if decision == "block" and not self.refuses else decision,
            "score": None if judgement is None else judgement.verdict_score,
            "critique": None if judgement is None else judgement.critique,
            "block_below": self.guard.block_below,
            "pass_above": self.guard.pass_above,
        }


def _content(turn: AgentAction, has_calls: bool) -> str:
    """The text of an answer: beside calls in the chat template's own format, otherwise the action or all of it."""
    if turn.message.get("tool_calls"):
        return turn.message["content"]
    if has_calls:
        return ""
    return turn.text if turn.action is None else turn.action


def _number(body: dict[str, Any], name: str, default: int, least: int) -> int:
    number = body.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MAX_NUMBER:
        limits = f"from {least} to {MAX_NUMBER}"
        raise RequestRefused(f"`{name}` must be a whole number {limits}, got {number!r:.50}.", name)
    return number
