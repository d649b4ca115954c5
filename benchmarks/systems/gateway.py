# SPDX-License-Identifier: Apache-2.0

"""
Requests that the policy's server answers in a second, and how long they take. A client in another process sends
1,000 requests a second for 10 s, whatever the answers take, and does little more than write and read. A
thread answers each as soon as it sees it. `lost` is what was not answered rightly; `achieved_rate` is how many a
second were answered.

python -m benchmarks.systems.gateway --json benchmarks/results/gateway.json
"""

import asyncio
import json
import multiprocessing
import queue
import threading
import time
from statistics import quantiles
from urllib.parse import urlsplit

from benchmarks import reporting
from trl_nlac.gateway.chat_requests import Reply, reply_message
from trl_nlac.gateway.server import Request, the_server


class LightClient:
    """A connection that is kept, and requests on it."""

    def __init__(self, base_url: str, api_key: str):
        parts = urlsplit(base_url)
        self.address = parts.hostname, parts.port
        self.head = (
            f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {api_key}\r\nContent-Type: application/json\r\nContent-Length: "
        )
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, messages: list[dict]) -> dict:
        """Ask for a chat completion, and return its message."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(*self.address)
        body = json.dumps({"model": "policy", "messages": messages})
        self.writer.write(f"{self.head}{len(body)}\r\n\r\n{body}".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        answer = json.loads(await self.reader.readexactly(length))
        if " 200 " not in lines[0]:
            raise RuntimeError(f"{lines[0]}: {answer}")
        return answer["choices"][0]["message"]


class Echo:
    """A client of the server that answers every request at once, in a thread of its own."""

    def __init__(self):
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        threading.Thread(target=self.work, daemon=True).start()

    def ask(self, request: Request) -> None:
        """Take a question."""
        self.requests.put(request)

    def pay(self, reward: float) -> None:
        """Take a reward."""

    def work(self) -> None:
        """Answer questions with their last messages."""
        while True:
            request = self.requests.get()
            request.reply(Reply(reply_message(request.question.messages[-1]["content"], [], ()), 3, 2))


def send(base_url: str, api_key: str, rate: float, seconds: float, connections: int, results) -> None:
    """Send requests at a rate, whatever the answers take; put latencies, losses and the time that it took."""

    async def work() -> tuple[list[float], int, float]:
        free: asyncio.Queue[LightClient] = asyncio.Queue()
        for _ in range(connections):
            free.put_nowait(LightClient(base_url, api_key))
        latencies, lost = [], 0

        async def one(i: int, due: float) -> None:
            nonlocal lost
            client = await free.get()
            try:
                message = await client.ask([{"role": "user", "content": f"number {i}"}])
                lost += message["content"] != f"number {i}"
            except Exception:
                lost += 1
            latencies.append(time.perf_counter() - due)
            free.put_nowait(client)

        start, tasks = time.perf_counter(), []
        for i in range(round(rate * seconds)):
            due = start + i / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one(i, due)))
        await asyncio.gather(*tasks)
        return latencies, lost, time.perf_counter() - start

    results.put(asyncio.run(work()))


def measure_load(rate: float = 1000.0, seconds: float = 10.0, connections: int = 64) -> dict:
    """Send requests from another process."""
    server = the_server()
    key = server.open(Echo())
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    of_client = (server.base_url, key, rate, seconds, connections, results)
    process = context.Process(target=send, args=of_client)
    process.start()
    latencies, lost, taken = results.get()
    process.join()
    server.close(key)
    percentiles = quantiles(latencies, n=100)
    return {
        "rate": rate,
        "seconds": seconds,
        "requests": len(latencies),
        "lost": lost,
        "achieved_rate": round(len(latencies) / taken, 1),
        "latency_p50_ms": round(1000 * percentiles[49], 2),
        "latency_p99_ms": round(1000 * percentiles[98], 2),
    }


def main():
    args = reporting.parser(__doc__).parse_args()
    report = {**reporting.setting("aiohttp"), "load": measure_load()}
    print(json.dumps(report, indent=2))
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
