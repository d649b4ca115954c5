# SPDX-License-Identifier: Apache-2.0

"""A fake server with OpenAI's chat interface, over real HTTP."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from helpers.http_utils import JSONHandler


class ChatServer:
    """
    Serves one model, `"teacher"`.

    Args:
        answer (`Callable[[list[dict]], str | bytes | int]`):
            Answers the messages of a conversation, with the text of a message, all that is sent, or a status.
    """

    def __init__(self, answer: Callable[[list[dict]], str | bytes | int]):
        self.answer = answer
        self.requests: list[dict] = []
        self.keys: list[str] = []
        self.url = ""

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve in a `with` block and return the URL."""
        handler = type("Handler", (_Handler,), {"server_of_tests": self})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.url = f"http://127.0.0.1:{server.server_port}/v1"
            yield self.url
            server.shutdown()


def answers_at_a_time(number: int, text: str) -> Callable[[list[dict]], str]:
    """Return what answers with a text, or with a complaint where more than a number of requests are open."""
    places = threading.Semaphore(number)

    def answer(messages: list[dict]) -> str:
        if not places.acquire(blocking=False):
            return "These are too many."
        time.sleep(0.05)
        places.release()
        return text

    return answer


class _Handler(JSONHandler):
    server_of_tests: ChatServer

    def do_GET(self):
        model = {"id": "teacher", "object": "model", "created": 0, "owned_by": "me"}
        self.answer({"object": "list", "data": [model]})

    def do_POST(self):
        assert self.path == "/v1/chat/completions"
        request = self.read()
        self.server_of_tests.requests.append(request)
        self.server_of_tests.keys.append(self.headers["Authorization"])
        said = self.server_of_tests.answer(request["messages"])
        if isinstance(said, bytes):
            return self.send(said)
        if isinstance(said, int):
            return self.answer({}, status=said)
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "teacher", "choices": [choice]}
        self.answer(answer)
