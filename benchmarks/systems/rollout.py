# SPDX-License-Identifier: Apache-2.0

"""
How long rollouts wait for slow environments: wall time of `play_episodes` against a loop that plays one episode after
the other, and against the ideal, in which all environments step at once and only latency and generation take time.

The generator is a stub that answers at once, or after `--generation_seconds`, so that only the orchestration is
measured. The serial loop is the same code with one environment instance (`max_instances=1`), run for
`--serial_episodes` episodes and scaled. `seconds` is the median of rollouts that reuse their instances, as in
training; `first_seconds` is the time of the first rollout, which creates them.

`computing` compares environments that compute in Python for `--compute_seconds` at each step, in threads and in
processes (`environment_workers`): `process_speedup` is how much faster processes are, and `bare_speedup` how much
faster the machine computes the same in two bare processes than in one, which is the most that two cores can give.

python -m benchmarks.systems.rollout --json benchmarks/results/rollout.json
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from functools import partial
from pathlib import Path
from statistics import median

from transformers import AutoTokenizer

from benchmarks import reporting
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.generation.generator import Completion, Sampling
from trl_nlac.method.roles import Roles
from trl_nlac.options.role_options import RoleOptions


class StubGenerator:
    """Generates the same answer for every prompt, in `seconds` for each batch."""

    is_concurrent = False

    def __init__(self, token_ids: list[int], seconds: float):
        self.token_ids = token_ids
        self.seconds = seconds
        self.num_calls = 0

    def any_process(self, wants: bool) -> bool:
        return wants

    def take_metrics(self) -> dict[str, float]:
        return {}

    def generate(self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar=None) -> list[Completion]:
        time.sleep(self.seconds)
        self.num_calls += 1
        return [Completion(self.token_ids, True) for _ in prompts]


def make_environment(latency: float, num_turns: int, is_async: bool):
    """Make an environment class whose steps take `latency` seconds and whose `reset` takes none."""

    class Blocking:
        def reset(self) -> str:
            self.turn = 0
            return "win 1"

        def step(self, action: str) -> StepResult:
            time.sleep(latency)
            return self.result()

        def result(self) -> StepResult:
            self.turn += 1
            return StepResult("win 1", reward=float(self.turn == num_turns), terminated=self.turn == num_turns)

    class Async(Blocking):
        async def step(self, action: str) -> StepResult:
            await asyncio.sleep(latency)
            return self.result()

    return Async if is_async else Blocking


def compute(amount: int) -> int:
    """Compute in Python."""
    total = 0
    for i in range(amount):
        total += i * i % 7
    return total


def amount_of(seconds: float) -> int:
    """Return the amount that takes about this long, in a thread that has a core to itself."""
    amount = 10_000
    times = []
    for _ in range(50):
        start = time.perf_counter()
        compute(amount)
        times.append(time.perf_counter() - start)
    return round(amount * seconds / median(times))


def make_computing(amount: int, num_turns: int):
    """Make an environment class whose steps compute."""

    class Computing:
        def reset(self) -> str:
            self.turn = 0
            return "win 1"

        def step(self, action: str) -> StepResult:
            compute(amount)
            self.turn += 1
            return StepResult("win 1", reward=float(self.turn == num_turns), terminated=self.turn == num_turns)

    return Computing


def bare_speedup(amount: int, number: int) -> float:
    """Measure how much faster two processes compute than one, with nothing around it."""
    amounts = [amount] * number
    seconds = {}
    for num_processes in (1, 2):
        with multiprocessing.get_context("spawn").Pool(num_processes) as processes:
            processes.map(compute, [1000] * 2 * num_processes)  # they have started
            start = time.perf_counter()
            processes.map(compute, amounts, chunksize=1)
            seconds[num_processes] = time.perf_counter() - start
    return seconds[1] / seconds[2]


def measure(
    environment,
    num_episodes: int,
    num_turns: int,
    generation: float,
    max_instances: int | None,
    repetitions: int = 1,
    workers: str = "thread",
):
    """Return the seconds and the number of generated batches of each rollout. The first creates the instances."""
    chat = ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL))
    generator = StubGenerator(chat.completion("take red"), generation)
    options = RoleOptions(action_format="text", max_turns=num_turns, max_completion_length=8)
    roles = Roles(generator, chat, COMPACT_PROMPTS, options)
    pool = EnvironmentPool(environment, max_instances=max_instances, workers=workers)
    runs = []
    for _ in range(repetitions):
        start, num_calls = time.perf_counter(), generator.num_calls
        episodes = play_episodes(pool, [{}] * num_episodes, roles)
        runs.append((time.perf_counter() - start, generator.num_calls - num_calls))
        assert all(episode.score == 1 and len(episode.turns) == num_turns for episode in episodes)
    pool.close()
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--num_episodes", type=int, default=64)
    parser.add_argument("--num_turns", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds of a step")
    parser.add_argument("--generation_seconds", type=float, nargs="+", default=[0.0, 0.1], help="seconds of a batch")
    parser.add_argument("--compute_seconds", type=float, default=0.02, help="seconds of a step that computes")
    parser.add_argument("--computing_episodes", type=int, default=16)
    parser.add_argument("--serial_episodes", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()

    rows = []
    for generation in args.generation_seconds:
        for kind in ("blocking", "async"):
            environment = make_environment(args.latency, args.num_turns, is_async=kind == "async")
            measure(environment, 2, args.num_turns, generation, None)  # warm up
            ((serial, _),) = measure(environment, args.serial_episodes, args.num_turns, generation, max_instances=1)
            serial *= args.num_episodes / args.serial_episodes
            first, *runs = measure(
                environment, args.num_episodes, args.num_turns, generation, None, 1 + args.repetitions
            )
            seconds = median(run[0] for run in runs)
            ideal = args.num_turns * (args.latency + generation)
            rows.append(
                {
                    "environment": kind,
                    "generation_seconds": generation,
                    "serial_seconds": round(serial, 3),
                    "seconds": round(seconds, 3),
                    "first_seconds": round(first[0], 3),
                    "all_seconds": [round(run[0], 3) for run in runs],
                    "generation_calls": [run[1] for run in runs],
                    "ideal_seconds": round(ideal, 3),
                    "speedup_over_serial": round(serial / seconds, 1),
                    "ratio_to_ideal": round(seconds / ideal, 2),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    amount = amount_of(args.compute_seconds)
    play = partial(measure, make_computing(amount, args.num_turns), args.computing_episodes, args.num_turns, 0.0, None)
    computing = {"episodes": args.computing_episodes, "compute_seconds": args.compute_seconds}
    for workers in ("thread", "process"):
        first, *runs = play(1 + args.repetitions, workers)
        computing[f"{workers}_seconds"] = round(median(run[0] for run in runs), 3)
        computing[f"first_{workers}_seconds"] = round(first[0], 3)
    computing["process_speedup"] = round(computing["thread_seconds"] / computing["process_seconds"], 2)
    bare = [bare_speedup(amount, args.computing_episodes * args.num_turns) for _ in range(args.repetitions)]
    computing["bare_speedup"] = round(median(bare), 2)
    print(json.dumps(computing), flush=True)
    report = {
        "episodes": args.num_episodes,
        "turns": args.num_turns,
        "latency_seconds": args.latency,
        **reporting.setting("torch", "transformers", "trl"),
        "speedup_over_serial": min(row["speedup_over_serial"] for row in rows),
        "ratio_to_ideal": max(row["ratio_to_ideal"] for row in rows),
        "process_speedup": computing["process_speedup"],
        "bare_speedup": computing["bare_speedup"],
        "computing": computing,
        "rows": rows,
    }
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
