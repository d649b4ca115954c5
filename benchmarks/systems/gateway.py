# SPDX-License-Identifier: Apache-2.0

"""
What it costs that the policy answers an agent over HTTP.

- `rows`: wall time of `play_episodes` with agents behind `AgentEnvironment`, against a class whose steps take as long.
  Agents sleep for `--latency` before each request but the first, as the class does in `step`. They are coroutines with
  a client that does little more than write and read, so that the server and the orchestration are measured, and not
  OpenAI's client. The generator is a stub that answers a batch at once, or after `--generation_seconds`. Both sides
  play in turn, and `ratio_to_environment` is that of the medians.
- `load`: a client in another process sends `--rate` requests a second for `--load_seconds`, whatever the answers take.
  A thread answers each as soon as it sees it. `lost` is what was not answered rightly; `achieved_rate` is how many a
  second were answered.
- `memory`: resident memory of the process after a tenth of `--memory_episodes` episodes of an agent with two requests,
  and after all of them.

python -m benchmarks.systems.gateway --json benchmarks/results/gateway.json
"""

import argparse
import asyncio
import json
import multiprocessing
import queue
import threading
import time
from statistics import median, quantiles
from urllib.parse import urlsplit

from benchmarks import reporting
from benchmarks.systems.rollout import make_environment, make_roles
from trl_nlac.environments import AgentEnvironment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
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

    def close(self) -> None:
        """Close the connection."""
        if self.writer is not None:
            self.writer.close()


def make_agent(latency: float, num_turns: int):
    """Make an agent whose turns take `latency` seconds."""

    async def run_agent(task: dict, base_url: str, api_key: str) -> float:
        client = LightClient(base_url, api_key)
        messages = [{"role": "user", "content": "win 1"}]
        for _ in range(num_turns):
            messages.append(await client.ask(messages))
            await asyncio.sleep(latency)
            messages.append({"role": "user", "content": "win 1"})
        client.close()
        return 1.0

    return run_agent


class Player:
    """Plays episodes in one kind of environment, with a stub for the policy."""

    def __init__(self, environment, num_turns: int, generation: float):
        self.roles = make_roles(num_turns + 1, generation)
        self.pool = EnvironmentPool(environment)
        self.num_turns = num_turns

    def seconds(self, num_episodes: int) -> float:
        """Play episodes, check them, and return the seconds they took."""
        start = time.perf_counter()
        episodes = play_episodes(self.pool, [{}] * num_episodes, self.roles)
        seconds = time.perf_counter() - start
        for episode in episodes:
            assert episode.failure is None and episode.score == 1 and len(episode.turns) == self.num_turns, episode
            assert not episode.segments
        return seconds


def measure_ratio(args: argparse.Namespace, generation: float) -> dict:
    """Measure both sides in turn."""
    sides = {
        "environment": Player(make_environment(args.latency, args.num_turns, True), args.num_turns, generation),
        "gateway": Player(AgentEnvironment(make_agent(args.latency, args.num_turns)), args.num_turns, generation),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(1 + args.repetitions):  # the first one makes the instances
        for name, player in sides.items():
            seconds[name].append(player.seconds(args.num_episodes))
    for player in sides.values():
        player.pool.close()
    medians = {name: median(values[1:]) for name, values in seconds.items()}
    return {
        "generation_seconds": generation,
        "ideal_seconds": round(args.num_turns * (args.latency + generation), 3),
        **{f"{name}_seconds": round(value, 3) for name, value in medians.items()},
        "ratio_to_environment": round(medians["gateway"] / medians["environment"], 2),
    }


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


def measure_load(args: argparse.Namespace) -> dict:
    """Send requests from another process."""
    server = the_server()
    key = server.open(Echo())
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(
        target=send, args=(server.base_url, key, args.rate, args.load_seconds, args.num_episodes, results)
    )
    process.start()
    latencies, lost, seconds = results.get()
    process.join()
    server.close(key)
    percentiles = quantiles(latencies, n=100)
    return {
        "rate": args.rate,
        "seconds": args.load_seconds,
        "requests": len(latencies),
        "lost": lost,
        "achieved_rate": round(len(latencies) / seconds, 1),
        "latency_p50_ms": round(1000 * percentiles[49], 2),
        "latency_p99_ms": round(1000 * percentiles[98], 2),
    }


def measure_memory(args: argparse.Namespace) -> dict:
    """Play episodes in groups, and watch the memory."""
    player = Player(AgentEnvironment(make_agent(0.0, 2)), 2, 0.0)
    played, sizes = 0, {}
    while played < args.memory_episodes:
        player.seconds(args.num_episodes)
        played += args.num_episodes
        sizes[played] = reporting.resident_bytes() / 2**20
    player.pool.close()
    first = next(size for number, size in sizes.items() if number >= args.memory_episodes / 10)
    return {
        "episodes": played,
        "rss_after_a_tenth_mib": round(first, 1),
        "rss_at_the_end_mib": round(sizes[played], 1),
        "growth_mib": round(sizes[played] - first, 1),
    }


def main():
    parser = reporting.parser(__doc__)
    parser.add_argument("--num_episodes", type=int, default=64)
    parser.add_argument("--num_turns", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds of a turn")
    parser.add_argument("--generation_seconds", type=float, nargs="+", default=[0.0, 0.1], help="seconds of a batch")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second")
    parser.add_argument("--load_seconds", type=float, default=10.0)
    parser.add_argument("--memory_episodes", type=int, default=10_000)
    args = parser.parse_args()
    report = {
        **{"episodes": args.num_episodes, "turns": args.num_turns, "latency_seconds": args.latency},
        **reporting.setting("aiohttp", "torch", "transformers"),
        "rows": [measure_ratio(args, generation) for generation in args.generation_seconds],
        "load": measure_load(args),
        "memory": measure_memory(args),
    }
    report["ratio_to_environment"] = max(row["ratio_to_environment"] for row in report["rows"])
    print(json.dumps(report, indent=2))
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
