# SPDX-License-Identifier: Apache-2.0

"""The server: one for the process, on loopback, with a key for each client."""

import asyncio
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web

from ..event_loop import Coroutines
from ..terminal import printable_traceback
from .chat_answers import chat_completion, chat_events, models, response, response_events
from .chat_requests import Proposal, Question, Reply, RequestRefused, read_chat, read_proposal, read_response


logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_BODY = 64 * 2**20  # bytes of a request


Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class Request(Generic[Asked, Answered]):
    """A question, or a proposal, that waits for its reply."""

    def __init__(self, question: Asked):
        self.question = question
        self.asked_at = time.monotonic()
        self.future: Future[Answered] = Future()

    @property
    def is_abandoned(self) -> bool:
        """Whether the client is gone."""
        return self.future.cancelled()

    def reply(self, reply: Answered) -> bool:
        """Answer. Return whether the client was still there."""
        return self._finish(lambda: self.future.set_result(reply))

    def refuse(self, error: Exception) -> bool:
        """
        Answer with an error: what is not a [`RequestRefused`] is one of the server. Return whether the client was
        still there.
        """
        return self._finish(lambda: self.future.set_exception(error))

    def _finish(self, set_: Callable[[], None]) -> bool:
        try:
            set_()
        except InvalidStateError:
            return False
        return True


class Client(Protocol):
    """Takes the requests with a key, in the thread of the server: it must not block."""

    def ask(self, request: Request[Question, Reply]) -> None:
        """Take a question; it is answered later."""

    def judge(self, request: Request[Proposal, dict[str, Any]]) -> None:
        """Take an action that is to be judged; it is answered later."""

    def pay(self, reward: float) -> None:
        """Take a reward."""


class Server:
    """
    Serves clients under `/v1`: `/chat/completions`, `/responses`, `/models`, `/reward` and `/guard`. It listens on a
    port of the loopback interface only, by default a free one, in an event loop of its own, until the process ends.

    Raises:
        OSError: If the port is in use.
    """

    def __init__(self, port: int = 0):
        self._clients: dict[str, Client] = {}
        self._loop = Coroutines()
        self.base_url = f"http://{HOST}:{self._loop.run(self._start(port))}/v1"

    def open(self, client: Client, key: str | None = None) -> str:
        """Let a client in, with a key of its own if none is given. Return the key."""
        key = f"sk-nlac-{secrets.token_urlsafe(24)}" if key is None else key
        self._clients[key] = client
        return key

    def close(self, key: str) -> None:
        """Refuse the requests with a key from now on."""
        self._clients.pop(key, None)

    async def _start(self, port: int) -> int:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_with_errors])
        app.add_routes(
            [
                web.get("/v1/models", self._list_models),
                web.post("/v1/chat/completions", self._complete),
                web.post("/v1/responses", self._respond),
                web.post("/v1/reward", self._reward),
                web.post("/v1/guard", self._guard),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        self._runner = runner
        ((_, port),) = [address[:2] for address in runner.addresses]
        return port

    async def _list_models(self, request: web.Request) -> web.Response:
        self._client_of(request)
        return web.json_response(models())

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        question, reply = await self._ask(request, read_chat)
        if question.is_streamed:
            return await _streamed(request, chat_events(question, reply))
        return web.json_response(chat_completion(question, reply))

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        question, reply = await self._ask(request, read_response)
        if question.is_streamed:
            return await _streamed(request, response_events(question, reply))
        return web.json_response(response(question, reply))

    async def _reward(self, request: web.Request) -> web.Response:
        client = self._client_of(request)
        body = await _json(request)
        reward = body.get("reward") if isinstance(body, dict) else None
        if not _is_finite(reward):
            raise RequestRefused('The body must be `{"reward": ...}` with a finite number.', "reward")
        client.pay(float(reward))
        return web.json_response({"object": "reward", "reward": reward})

    async def _guard(self, request: web.Request) -> web.Response:
        client = self._client_of(request)
        asked = Request(read_proposal(await _json(request)))
        client.judge(asked)
        return web.json_response(await asyncio.wrap_future(asked.future))

    async def _ask(self, request: web.Request, read: Callable[[Any], Question]) -> tuple[Question, Reply]:
        client = self._client_of(request)
        asked = Request(read(await _json(request)))
        client.ask(asked)
        return asked.question, await asyncio.wrap_future(asked.future)

    def _client_of(self, request: web.Request) -> Client:
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        client = self._clients.get(key.strip()) if kind.lower() == "bearer" else None
        if client is None:
            raise RequestRefused(
                "The key is wrong, or its episode has ended. Use the one that was given for this server.",
                status=401,
            )
        return client


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.text())
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"The body is not JSON: {error}") from error
    except (LookupError, web.RequestPayloadError) as error:
        raise RequestRefused(f"The body is not in the charset or the encoding of its headers: {error}") from error


def _is_finite(number: Any) -> bool:
    try:
        return isinstance(number, int | float) and math.isfinite(number)
    except OverflowError:  # a whole number that no float holds
        return False


async def _streamed(request: web.Request, events) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await answer.prepare(request)
    await answer.write("".join(events).encode())
    await answer.write_eof()
    return answer


@web.middleware
async def _with_errors(request: web.Request, handler: Callable) -> web.StreamResponse:
    """Answer errors in OpenAI's form."""
    try:
        return await handler(request)
    except RequestRefused as error:
        return web.json_response(error.body, status=error.status)
    except web.HTTPException as error:
        refused = RequestRefused(f"{request.method} {request.path}: {error.reason}.", status=error.status)
        return web.json_response(refused.body, status=error.status)
    except ConnectionError:  # the client is gone
        raise
    except Exception as error:
        logger.warning("A request could not be answered.\n%s", printable_traceback(error))
        refused = RequestRefused("The server failed.", status=500)
        return web.json_response(refused.body, status=500)


_lock = threading.Lock()
_server: Server | None = None


def the_server() -> Server:
    """The server of this process, which is started when it is first needed."""
    global _server
    with _lock:
        if _server is None:
            _server = Server()
        return _server
