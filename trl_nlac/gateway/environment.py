# SPDX-License-Identifier: Apache-2.0

"""Agents that others wrote, against a server with OpenAI's interface that the policy answers."""

import asyncio
import inspect
import json
import math
import os
import queue
import re
import shlex
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import copy_context
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from ..chat.tool_calls import format_results, parse_tool_calls, said
from ..episodes.text_environment import (
    EnvironmentFailure,
    Opening,
    PolicyAnswer,
    StepResult,
    TextEnvironment,
    describe_error,
)
from ..event_loop import finish
from ..secrets import hide_in_text
from ..terminal import shown
from ..types import Message
from .chat_requests import MODEL, Question, Reply, RequestRefused, reply_message, what_followed


if TYPE_CHECKING:
    from .server import Request

RunAgent = Callable[[dict[str, Any], str, str], float | None | Awaitable[float | None]]

OTHER_MODEL = "A small task"  # what another model than the policy says: agents ask small ones for titles
ENDING_SECONDS = 5.0  # how long an agent that is cut has to end itself, and to be ended
_MAX_OUTPUT = 2**16  # bytes of the output of a command that are kept
_POLL_SECONDS = 0.02  # between looks whether a command has ended
_COLUMN = re.compile(r"\{(\w+)\}")


class AgentEnvironment(TextEnvironment):
    """
    Runs an agent as it is, of any framework: a program that solves a task and asks a model through OpenAI's interface.
    The policy is that model. An answer to a request is an action, and what the agent adds to the conversation before
    its next request is the observation.

    An instance is also a factory, which makes environments like itself: `environment_factory=AgentEnvironment(...)`.

    Each run has a key of its own for a server in this process, which listens on the loopback interface only. It offers
    `/chat/completions` and `/responses`, with tools and streaming, `/models`, and `/reward`, which takes `{"reward":
    ...}`. How answers are sampled is the trainer's choice: `temperature` and the like are ignored, and so is
    `tool_choice`, unless it is `"none"`. An answer that is not an action, and a call of a tool that the request does
    not have, do not reach the agent: the policy gets a message, and is asked again. A request to another model than
    `policy`, for a title, is answered with a fixed text, and is part of no episode.

    A request that does not begin with all of an earlier conversation, reply included, begins one of its own,
    which is trained on as an episode with the same final reward: of a sub-agent, or with a history that was compacted.

    An agent that raises, exits with another code than 0, or ends without any request has failed, as an environment
    does. One that is cut by a limit of the trainer gets an error for its open request, and a few seconds to end; what
    it pays then counts.

    Args:
        run_agent (`Callable` or `str` or `list[str]`):
            The agent. A function or coroutine function is called as `run_agent(task, base_url, api_key)`, where `task`
            is a row of the dataset, and returns the reward of the run. A command is started in a process of its own,
            with `OPENAI_BASE_URL` and `OPENAI_API_KEY` in its variables, the task as JSON on its standard input, and
            `{column}` in its words replaced by that column of the task, which cannot become an option: a word that
            begins with a column's `-` is refused, unless `--` stands before it. The last line that it prints is the
            reward, if it is a number. What it has started ends with it. Commands need POSIX: Linux or macOS.
        pays (`bool`, *optional*, defaults to `True`):
            Whether the agent gives a reward, by what it returns or prints, by `/reward`, or by both: their sum. A run
            without any has failed then. If `False`, there must be `reward_funcs`, and what it returns is ignored.

    Raises:
        ImportError: If aiohttp is not installed.
        TypeError: If `run_agent` is neither callable nor a command.

    Example:

    ```python
    from openai import OpenAI


    def run_agent(task, base_url, api_key):
        client = OpenAI(base_url=base_url, api_key=api_key)
        messages = [{"role": "user", "content": task["question"]}]
        answer = client.chat.completions.create(model="policy", messages=messages)
        return float(task["answer"] in answer.choices[0].message.content)


    environment_factory = AgentEnvironment(run_agent)
    ```
    """

    takes_answers = True
    brings_tools = True

    def __init__(self, run_agent: RunAgent | str | list[str], pays: bool = True):
        if find_spec("aiohttp") is None:
            raise ImportError("AgentEnvironment needs aiohttp: `pip install trl-nlac[gateway]`.")
        is_command = isinstance(run_agent, list) and run_agent and all(isinstance(word, str) for word in run_agent)
        if not callable(run_agent) and not is_command and not (isinstance(run_agent, str) and run_agent.strip()):
            raise TypeError(
                "`run_agent` must be a function of a task, a URL and a key, or a command as text or as a list of its "
                f"words, got {type(run_agent).__name__}."
            )
        self.run_agent = run_agent
        self.pays = pays
        self._run: _Run | None = None

    def __call__(self) -> "AgentEnvironment":
        """Make an environment like this one."""
        return AgentEnvironment(self.run_agent, self.pays)

    def reset(self, **task) -> Opening:
        """Start the agent with a task, and return what it asks first."""
        self.close()
        self._run = _Run(self.run_agent, task)
        return self._run.first_request()

    def step(self, action: PolicyAnswer) -> StepResult:
        """Give the answer to the agent, and return what follows: its next request, or its end."""
        return self._run.answer(action)

    def final_reward(self) -> float:
        """Return the reward of the run. An agent that still runs is ended: a limit has cut its episode."""
        is_cut = self._run.is_open
        self._run.end()
        reward = self._run.reward
        if not self.pays:
            return 0.0
        if reward is None and not is_cut:
            raise EnvironmentFailure(
                "the agent gave no reward: let it return or print a number, or send it to `/reward`; or set "
                "`AgentEnvironment(..., pays=False)` and give `reward_funcs`"
            )
        return 0.0 if reward is None else reward

    def close(self) -> None:
        """End the agent, without waiting until it ends itself."""
        run, self._run = self._run, None
        if run is not None:
            run.end(seconds=0.0)


class _End(NamedTuple):
    """The end of an agent: what it returned, or its error."""

    value: Any = None
    error: BaseException | None = None


class _Conversation:
    """A conversation of an agent with the policy, as the agent sees it."""

    def __init__(self, question: Question, asked: list[tuple]):
        self.tools = question.tools
        self.is_rewritten = False
        self.is_delivered = True
        self.ask(question, asked)

    def ask(self, question: Question, asked: list[tuple]) -> None:
        self.question, self.asked = question, asked
        self.reply: Reply | None = None
        self.replied_at = math.inf

    def answer(self, reply: Reply, request: "Request") -> None:
        self.reply, self.replied_at = reply, time.monotonic()
        self.is_delivered = request.reply(reply)

    def continuation(self, request: "Request", asked: list[tuple], given: set[str]) -> list[Message] | None:
        """What a request adds to the conversation; `None` if it does not continue it."""
        question, length = request.question, len(self.asked)
        if self.is_rewritten or not self._can_follow(request) or asked[:length] != self.asked:
            return None
        followed = what_followed(question.messages[length:], self.reply.message, self.question.stop, given)
        return followed[0] if followed is not None and followed[1] else None

    def rewritten_by(self, request: "Request", given: set[str]) -> list[Message]:
        """What follows the last answer in a request with another history; empty if that does not have the answer."""
        if not self._can_follow(request):
            return []
        messages, reply = request.question.messages, self.reply.message
        ends = [what_followed(messages[i:], reply, self.question.stop, given) for i in range(len(messages))]
        found = [added for added, _ in filter(None, ends)]
        ids = {call["id"] for call in reply.get("tool_calls", [])}
        has_id = any(call.get("id") in ids for message in messages for call in message.get("tool_calls", []))
        num_before = sum(said(message) == said(reply) for message in self.question.messages)  # of equal answers
        return found[-1] if found and (has_id or len(found) > num_before) else []

    def _can_follow(self, request: "Request") -> bool:
        """Whether a request was made after the last answer, with the same tools."""
        return request.asked_at > self.replied_at and request.question.tools == self.tools


class _Run:
    """One run of an agent: a client of the server, from its start to its end."""

    def __init__(self, run_agent: RunAgent | str | list[str], task: dict[str, Any]):
        from .server import the_server

        self.run_agent = run_agent
        self.task = task
        self.is_open = True
        self.paid: list[float] = []
        self.returned: Any = None
        self._events: queue.SimpleQueue[Request | _End] = queue.SimpleQueue()
        self._conversations: list[_Conversation] = []
        self._current = 0
        self._request: Request | None = None
        self._asked: list[tuple] = []  # what its messages say
        self._given: set[str] = set()  # ids of calls
        self._cancel: Callable[[], Any] = lambda: None
        self._ending = threading.Lock()
        self._server = the_server()
        self._key = self._server.open(self)
        # Coroutines run in the event loop of the environment's thread.
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), daemon=True, name="agent")
        self._thread.start()

    # What the server tells, in its thread

    def ask(self, request: "Request") -> None:
        """Take a question. One to another model than the policy is answered here, and is part of no episode."""
        if request.question.body.get("model") not in (MODEL, None):
            request.reply(Reply({"role": "assistant", "content": OTHER_MODEL}, 0, 0))
            return
        self._events.put(request)
        if not self.is_open:
            self._refuse_all()

    def pay(self, reward: float) -> None:
        """Take a reward."""
        self.paid.append(reward)

    def judge(self, request: "Request") -> None:
        """Refuse to judge an action: in training nothing does."""
        raise RequestRefused("`/guard` is offered by `trl-nlac serve`, not while an agent is trained.", status=404)

    # What the trainer asks, in the thread of the environment

    @property
    def reward(self) -> float | None:
        """The sum of what the agent paid and returned; `None` if it did neither."""
        if self.returned is None:
            return sum(self.paid) if self.paid else None
        return sum(self.paid, self.returned) if self.paid else self.returned

    def first_request(self) -> Opening:
        """Wait for the first request. An agent that fails, or ends without one, is a failure of the environment."""
        request = self._next()
        if request is None:
            raise EnvironmentFailure(f"the agent ended without a request to the model {MODEL!r}")
        return self._open(request)

    def answer(self, answer: PolicyAnswer) -> StepResult:
        """Answer the request, and wait for what follows. An agent that fails is a failure of the environment."""
        conversation, question = self._conversations[self._current], self._request.question
        calls = parse_tool_calls(answer.action) if question.tools else []
        names = {tool["function"]["name"] for tool in question.tools}
        if any(name not in names for name, _ in calls):
            return StepResult(format_results([_problem_of(name, names) for name, _ in calls]))
        if len(calls) > 1 and not question.takes_several_calls:
            problem = str({"error": "Not called, as an answer can call one tool here."})
            return StepResult(format_results([problem] * len(calls)))
        content = "" if calls and answer.content == answer.action else answer.content
        message = reply_message(content, calls, question.stop)
        self._given.update(call["id"] for call in message.get("tool_calls", []))
        conversation.answer(Reply(message, answer.num_prompt_tokens, answer.num_tokens), self._request)
        request = self._next()
        return StepResult("", terminated=True) if request is None else self._observe(conversation, request)

    def end(self, seconds: float = ENDING_SECONDS) -> None:
        """End the agent: no request is answered any more, and what still runs after some seconds is stopped."""
        with self._ending:
            if not self.is_open:
                return
            self.is_open = False
            self._server.close(self._key)
            if self._request is not None:
                self._request.refuse(_refusal())
            self._refuse_all()
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._cancel()
                self._thread.join(ENDING_SECONDS)
            self._events.put(_End(error=EnvironmentFailure("the agent was stopped")))  # wakes a thread that waits

    def _next(self) -> "Request | None":
        """Wait for the next request; `None` if the agent ended."""
        while True:
            event = self._events.get()
            if isinstance(event, _End):
                self.returned, self.is_open = event.value, False
                self._server.close(self._key)
                self._refuse_all()
                if event.error is not None:
                    raise EnvironmentFailure(
                        f"the agent failed: {type(event.error).__name__}: {describe_error(event.error)}"
                    ) from event.error
                return None
            if event.future.cancelled():  # the client is gone
                continue
            self._asked = [said(message) for message in event.question.messages]
            for conversation in self._conversations:
                is_same = conversation.asked == self._asked and conversation.tools == event.question.tools
                if is_same and not conversation.is_delivered:
                    conversation.is_delivered = event.reply(conversation.reply)
                    break
            else:
                self._request = event
                return event

    def _refuse_all(self) -> None:
        """Refuse the requests that wait; only the end of the agent stays."""
        ends = []
        try:
            while True:
                event = self._events.get_nowait()
                if isinstance(event, _End):
                    ends.append(event)
                else:
                    event.refuse(_refusal())
        except queue.Empty:
            for event in ends:
                self._events.put(event)

    def _open(self, request: "Request") -> Opening:
        """Begin a conversation with a request."""
        self._conversations.append(_Conversation(request.question, self._asked))
        self._current = len(self._conversations) - 1
        return Opening(request.question.messages, request.question.tools)

    def _observe(self, answered: _Conversation, request: "Request") -> StepResult:
        """Find the conversation that a request continues, or begin a new one."""
        for i in reversed(range(len(self._conversations))):
            added = self._conversations[i].continuation(request, self._asked, self._given)
            if added is not None:
                self._conversations[i].ask(request.question, self._asked)
                self._current = i
                return _observed(added, i)
        added = answered.rewritten_by(request, self._given)
        answered.is_rewritten = bool(added)
        return _observed(added, self._open(request))

    # The agent, in a thread of its own

    def _work(self) -> None:
        end = _outcome(lambda: finish(self._call()))  # an agent that calls sys.exit has failed like others
        self.returned = end.value
        self._events.put(end)

    async def _call(self) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self._cancel = lambda: loop.is_closed() or loop.call_soon_threadsafe(task.cancel)
        if not self.is_open:
            raise EnvironmentFailure("the agent was stopped before it began")
        if not callable(self.run_agent):
            return await _run_command(self.run_agent, self.task, self._server.base_url, self._key)
        arguments = (self.task, self._server.base_url, self._key)
        if inspect.iscoroutinefunction(self.run_agent):
            return await self.run_agent(*arguments)
        end = await asyncio.to_thread(_outcome, self.run_agent, *arguments)
        if end.error is not None:
            raise end.error
        return await end.value if inspect.isawaitable(end.value) else end.value


def _outcome(function: Callable, *arguments: Any) -> _End:
    """Call a function in a thread. Some errors do not come out of one by themselves."""
    try:
        return _End(function(*arguments))
    except BaseException as error:
        return _End(error=error)


def _observed(added: list[Message], conversation: int | Opening) -> StepResult:
    """Write what a client added to a conversation as an observation."""
    results = [message["content"] for message in added if message["role"] == "tool"]
    words = "\n\n".join(message["content"] for message in added if message["role"] != "tool")
    if results:
        return StepResult(format_results(results), words=words, conversation=conversation)
    return StepResult(words, conversation=conversation)


def _refusal() -> RequestRefused:
    return RequestRefused("The episode has ended: nothing is answered any more.", status=410)


def _problem_of(name: str, names: set[str]) -> str:
    """Say why a call did not reach the agent, as TRL words it."""
    message = "Not called, as another tool was not found." if name in names else f"Tool {name} not found."
    return str({"error": message})


def _filled(words: list[str], task: dict[str, Any]) -> Iterator[str]:
    """Put columns of a task into the words of a command."""
    for i, word in enumerate(words):
        filled = _COLUMN.sub(lambda match: str(task.get(match[1], match[0])), word)
        if filled.startswith("-") and not word.startswith("-") and "--" not in words[:i]:
            raise EnvironmentFailure(
                f"the word {word!r} of the command became {shown(filled)}, which can be taken for an option. Put `--` "
                f"before it, write it as `--name={word}`, or read the task from the standard input."
            )
        yield filled


async def _run_command(command: str | list[str], task: dict[str, Any], base_url: str, key: str) -> float | None:
    """Run a command with all that it starts, and return the reward that it prints. An exit code but 0 is a failure."""
    words = shlex.split(command) if isinstance(command, str) else command
    words = list(_filled(words, task))
    written = json.dumps(task, default=str).encode()  # before anything is started that an error would leave behind
    bypass = ",".join(part for part in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1") if part)
    variables = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key, "NO_PROXY": bypass, "no_proxy": bypass}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **variables}, start_new_session=True
    )
    output, errors = bytearray(), bytearray()
    exchange = asyncio.gather(
        _keep_last_part(process.stdout, output),
        _keep_last_part(process.stderr, errors),
        _write(process.stdin, written),
    )
    try:
        while process.returncode is None:  # `wait` would wait for all who hold its output
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # all of it has ended
            pass
        await asyncio.wait([exchange], timeout=ENDING_SECONDS)  # a daemon, which is not killed, can hold the output
        exchange.cancel()
    if process.returncode != 0:
        said_last = hide_in_text(" ".join(errors.decode(errors="replace").split()))[-500:]
        raise EnvironmentFailure(f"the command ended with the exit code {process.returncode}: {said_last}")
    lines = output.decode(errors="replace").split("\n")
    try:
        return float(next(line for line in reversed(lines) if line.strip()))
    except (StopIteration, ValueError):
        return None


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stream.write(data)
        await stream.drain()
    except ConnectionError:  # it does not read its input
        pass
    finally:
        stream.close()


async def _keep_last_part(stream: asyncio.StreamReader, kept: bytearray) -> None:
    """Read a stream to its end, and keep the last part."""
    while part := await stream.read(_MAX_OUTPUT):
        kept += part
        del kept[:-_MAX_OUTPUT]
