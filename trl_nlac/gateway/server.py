# SPDX-License-Identifier: Apache-2.0

"""The server: one for the process, on loopback, with a key for each client."""

import asyncio
import logging
import math
import secrets
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web

from ..event_loop import Coroutines
from ..terminal import printable_traceback
from .chat_answers import chat_completion, chat_events, models, response, response_events
from .chat_requests import Proposal, Question, Reply, RequestRefused, read_chat, read_proposal, read_response
from .parsed_json import parse_json


logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_BODY = 64 * 2**20  # bytes of a request, and of what they unpack to
MAX_VALUES = 2**22  # marks that begin values in a body: tiny ones take a hundred times their bytes
LARGE_BODY = 2**16  # bytes from which on a body is parsed beside the event loop
BODY_SECONDS = 60.0  # until all of a body has come
KEY_SECONDS = 10.0  # until a connection has shown a key
KEEP_SECONDS = 75.0  # without a request


Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class Request(Generic[Asked, Answered]):
    """A question, or a proposal, that waits for its reply."""

    def __init__(self, question: Asked):
        self.question = question
        self.asked_at = time.monotonic()
        self.future: Future[Answered] = Future()

    def reply(self, reply: Answered) -> bool:
        """Answer. Return whether the client was still there."""
        return self._finish(lambda: self.future.set_result(reply))

    def refuse(self, error: Exception) -> None:
        """Answer with an error: what is not a [`RequestRefused`] is one of the server."""
        self._finish(lambda: self.future.set_exception(error))

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


class _Connection(web.RequestHandler):
    """A connection, of which the server knows whether it has shown a key."""

    def __init__(self, server: "Server", *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.admit(self)

    def connection_lost(self, error: BaseException | None) -> None:
        self._server.forget(self)
        super().connection_lost(error)

    def handle_error(self, request, status=500, exc=None, message=None) -> web.StreamResponse:
        """Answer what is not HTTP in OpenAI's form. It is not logged: anybody can send it."""
        if request.writer.output_size > 0:
            raise ConnectionError("A part of another answer was sent.")
        refused = RequestRefused(f"The request is not HTTP: {message}" if message else "The server failed.")
        answer = web.json_response(refused.body, status=status)
        answer.force_close()
        return answer


class Server:
    """
    Serves clients under `/v1`: `/chat/completions`, `/responses`, `/models`, `/reward` and `/guard`. It listens on a
    port of the loopback interface only, by default a free one, in an event loop of its own, until the process ends.

    Connections take at most half of the files that the process may open, and those that have shown no key an eighth:
    the oldest of these is closed for a new one, and any of them after `KEY_SECONDS`. Raise an `OSError` if the port is
    in use.
    """

    def __init__(self, port: int = 0):
        self._clients: dict[str, Client] = {}
        self._max_connections = min(2048, _max_files() // 2)
        self._connections: set[_Connection] = set()
        self._keyless: dict[_Connection, asyncio.TimerHandle] = {}  # oldest first, with what will close them
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

    def admit(self, connection: _Connection) -> None:
        """Take a connection in, in the event loop."""
        self._connections.add(connection)
        self._keyless[connection] = asyncio.get_running_loop().call_later(KEY_SECONDS, connection.force_close)
        if len(self._connections) > self._max_connections or len(self._keyless) > self._max_connections // 4:
            oldest = next(iter(self._keyless))
            self.forget(oldest)
            oldest.force_close()

    def forget(self, connection: _Connection) -> None:
        """Take note that a connection is lost."""
        self._connections.discard(connection)
        self._note_key(connection)

    def _note_key(self, connection: _Connection) -> None:
        timer = self._keyless.pop(connection, None)
        if timer is not None:
            timer.cancel()

    async def _start(self, port: int) -> int:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_with_errors])
        app.add_routes(
            [
                web.get("/v1/models", self._list_models),
                web.post("/v1/chat/completions", partial(self._answer, read_chat, chat_events, chat_completion)),
                web.post("/v1/responses", partial(self._answer, read_response, response_events, response)),
                web.post("/v1/reward", self._reward),
                web.post("/v1/guard", self._guard),
            ]
        )
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        options = {"loop": loop, "access_log": None, "auto_decompress": False}
        options |= {"keepalive_timeout": KEEP_SECONDS, "lingering_time": 1.0}
        listening = socket.create_server((HOST, port))
        self._listening = await loop.create_server(
            lambda: _Connection(self, self._runner.server, **options),
            sock=listening,
            backlog=max(1, self._max_connections // 32),  # are accepted at once: few, so that each can show its key
        )
        listening.listen(128)  # wait to be accepted
        return listening.getsockname()[1]

    async def _list_models(self, request: web.Request) -> web.Response:
        self._client_of(request)
        return web.json_response(models())

    async def _answer(
        self, read: Callable[[Any], Question], events: Callable, whole: Callable, request: web.Request
    ) -> web.StreamResponse:
        """Answer a question, with the form of a streamed answer or that of a `whole` one."""
        client = self._client_of(request)
        asked = Request(await _read(request, read))
        client.ask(asked)
        question, reply = asked.question, await asyncio.wrap_future(asked.future)
        if not question.is_streamed:
            return web.json_response(whole(question, reply))
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await answer.prepare(request)
        await answer.write("".join(events(question, reply)).encode())
        await answer.write_eof()
        return answer

    async def _reward(self, request: web.Request) -> web.Response:
        client = self._client_of(request)
        body = await _read(request, lambda body: body)
        reward = body.get("reward") if isinstance(body, dict) else None
        if not isinstance(reward, int | float) or abs(reward) > sys.float_info.max:
            raise RequestRefused('The body must be `{"reward": ...}` with a finite number.', "reward")
        client.pay(float(reward))
        return web.json_response({"object": "reward", "reward": reward})

    async def _guard(self, request: web.Request) -> web.Response:
        client = self._client_of(request)
        asked = Request(await _read(request, read_proposal))
        client.judge(asked)
        return web.json_response(await asyncio.wrap_future(asked.future))

    def _client_of(self, request: web.Request) -> Client:
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        client = self._clients.get(key.strip()) if kind.lower() == "bearer" else None
        if client is None:
            raise RequestRefused(
                "The key is wrong, or its episode has ended. Use the one that was given for this server.", status=401
            )
        self._note_key(request.protocol)
        return client


def _max_files() -> int:
    """Number of files that the process may open."""
    if sys.platform == "win32":
        return 512
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else files


async def _read(request: web.Request, read: Callable[[Any], Asked]) -> Asked:
    """Read a body; a large one in a thread, while others are answered."""
    try:
        body = await asyncio.wait_for(request.read(), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise RequestRefused(f"The body did not come within {BODY_SECONDS:g} seconds.", status=408) from None
    except web.RequestPayloadError as error:
        raise RequestRefused(f"The body is not in the encoding of its headers: {error}") from error
    parts = (body, request.headers.get("Content-Encoding", ""), request.charset or "utf-8")
    if len(body) < LARGE_BODY and not parts[1]:
        return read(_json(*parts))
    return await asyncio.to_thread(lambda: read(_json(*parts)))


def _json(body: bytes, encoding: str, charset: str) -> Any:
    if encoding in ("gzip", "deflate"):
        body = _unpacked(body)
    elif encoding not in ("", "identity"):
        raise RequestRefused(f"The encoding {encoding!r} is not offered: gzip is, or none.", status=415)
    if sum(body.count(mark) for mark in (b"{", b"[", b",")) > MAX_VALUES:
        raise RequestRefused(f"The body has more than {MAX_VALUES:,} values.", status=413)
    try:
        return parse_json(body.decode(charset), parse_constant=_number, parse_float=_number)
    except LookupError as error:
        raise RequestRefused(f"The body is not in the charset of its headers: {error}") from error
    except ValueError as error:
        raise RequestRefused(f"The body is not JSON: {error}") from error


def _number(text: str) -> float:
    """Read what is a number in an answer, too: JSON has neither NaN nor infinities."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number of it")
    return number


def _unpacked(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=47)  # of gzip or zlib, as the body begins
    try:
        unpacked = unpacker.decompress(body, MAX_BODY)
    except zlib.error as error:
        raise RequestRefused(f"The body is not in the encoding of its headers: {error}") from error
    if unpacker.unconsumed_tail:
        raise RequestRefused(f"The body unpacks to more than {MAX_BODY:,} bytes.", status=413)
    if not unpacker.eof or unpacker.unused_data:
        raise RequestRefused("The body is not in the encoding of its headers: it is cut, or has more behind it.")
    return unpacked


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
