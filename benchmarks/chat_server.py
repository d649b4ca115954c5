# SPDX-License-Identifier: Apache-2.0

"""A server with OpenAI's chat interface, over real HTTP, whose answers are those of a function."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class JSONHandler(BaseHTTPRequestHandler):
    """Reads and answers one request, without logging."""

    def read(self) -> dict:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body: dict, status: int = 200) -> None:
        self.send(json.dumps(body).encode(), status)

    def send(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


class FakeServer:
    """Serves at a free local port, by handlers that know it as `of`."""

    handler: type[JSONHandler]
    server: type[ThreadingHTTPServer] = ThreadingHTTPServer
    address = "http://127.0.0.1:{port}/v1"

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve in a `with` block and return the URL."""
        with self.server(("127.0.0.1", 0), type("Handler", (self.handler,), {"of": self})) as server:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            self.url = self.address.format(port=server.server_port)
            yield self.url
            server.shutdown()


class _ChatHandler(JSONHandler):
    def do_GET(self):
        model = {"id": "teacher", "object": "model", "created": 0, "owned_by": "me"}
        self.answer({"object": "list", "data": [model]})

    def do_POST(self):
        assert self.path == "/v1/chat/completions"
        request = self.read()
        self.of.requests.append(request)
        self.of.keys.append(self.headers["Authorization"])
        said = self.of.answer(request["messages"])
        if isinstance(said, bytes):
            return self.send(said)
        if isinstance(said, int):
            return self.answer({}, status=said)
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "teacher", "choices": [choice]}
        self.answer(answer)


class ChatServer(FakeServer):
    """Serves the model `"teacher"`: `answer` returns the text of a message, all that is sent, or a status."""

    handler = _ChatHandler

    def __init__(self, answer: Callable[[list[dict]], str | bytes | int]):
        self.answer = answer
        self.requests: list[dict] = []
        self.keys: list[str] = []
