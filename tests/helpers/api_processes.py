# SPDX-License-Identifier: Apache-2.0

"""
A server with vLLM's interface, random answers and several API processes, each of which knows only what it was told
itself.
"""

import random
import threading

from benchmarks.chat_server import FakeServer, JSONHandler


class _Handler(JSONHandler):
    def fails(self) -> bool:
        """Answer with the next failure, if there is one."""
        statuses = self.of.failures.get(self.path)
        if not statuses:
            return False
        self.answer({"error": {"message": "It went wrong."}}, statuses.pop(0))
        return True

    def complete(self, body) -> None:
        odd = self.of.odd
        if not odd:
            tokens = random.Random(body["seed"]).choices(range(3, 60), k=4)
            choice = {"token_ids": [*tokens, *body["stop_token_ids"][:1]], "finish_reason": "stop"}
            self.answer({"choices": [choice], "usage": {}})
        elif (content := odd.pop(0)) is None:
            self.close_connection = True
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def do_GET(self):
        server = self.of
        if self.fails():
            return
        process = server.next_process()
        names = ["base", *server.adapters[process]]
        config = {"instance_id": f"{server.starts}-{process}"}
        answers = {
            "/health": {},
            "/metrics": {},
            "/v1/models": {"data": [{"id": name, "max_model_len": 512} for name in names]},
            "/server_info": {"vllm_config": config},
        }
        self.answer(answers[self.path.partition("?")[0]])

    def do_POST(self):
        server, body = self.of, self.read()
        if self.fails():
            return
        if self.path == "/v1/completions":
            self.complete(body)
            return
        if self.path == "/v1/load_lora_adapter":
            server.adapters[server.next_process()].add(body["lora_name"])
        elif self.path == "/collective_rpc":
            server.loads.append(body["kwargs"]["weights_path"])
        self.answer({})


class APIProcesses(FakeServer):
    """Answers what the trainer asks before it generates."""

    handler, address = _Handler, "http://127.0.0.1:{port}"

    def __init__(self, number: int):
        self.number = number
        self.starts = 0
        self.loads: list[str] = []
        self.failures: dict[str, list[int]] = {}
        self.odd: list[bytes | None] = []
        self.adapters: list[set[str]] = [set() for _ in range(number)]
        self._next = 0
        self._lock = threading.Lock()

    def next_process(self) -> int:
        with self._lock:
            self._next = (self._next + 1) % self.number
            return self._next
