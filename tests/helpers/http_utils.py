# SPDX-License-Identifier: Apache-2.0

"""Common parts of fake servers with JSON requests."""

import json
from http.server import BaseHTTPRequestHandler


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
