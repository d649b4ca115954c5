# SPDX-License-Identifier: Apache-2.0

"""A server with OpenAI's chat interface on this machine, whose answers are those of a function."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _ChatHandler(BaseHTTPRequestHandler):
    respond: staticmethod
    lock = threading.Lock()

    def do_GET(self):
        self._send({"object": "list", "data": [{"id": "teacher", "object": "model", "created": 0, "owned_by": "me"}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            content = self.respond(request["messages"])
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        self._send({"id": "1", "object": "chat.completion", "created": 0, "model": "teacher", "choices": [choice]})

    def _send(self, body: dict) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


@contextmanager
def serving(answer: Callable[[list[dict]], str]) -> Iterator[str]:
    """Serve the model `teacher`, which answers the messages of a conversation one after the other; yields the URL."""
    handler = type("Handler", (_ChatHandler,), {"respond": staticmethod(answer)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
