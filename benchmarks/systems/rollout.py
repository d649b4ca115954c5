# SPDX-License-Identifier: Apache-2.0

"""
How long rollouts wait for slow environments: wall time of `play_episodes` against the ideal, in which all environments
step at once and only latency and generation take time. The generator is a stub that answers at once, or after 0.1 s.
`seconds` is the median of rollouts that reuse their instances, as in training, and `first_seconds` the time of the
first one, which creates them.

python -m benchmarks.systems.rollout --json benchmarks/results/rollout.json
"""

import asyncio
import json
import time
from statistics import median

from transformers import AutoTokenizer

from benchmarks import reporting
from benchmarks.tiny_run import StubGenerator
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.generation.generator import Completion
from trl_nlac.method.roles import Roles
from trl_nlac.options.role_options import RoleOptions


NUM_EPISODES, NUM_TURNS, LATENCY = 64, 8, 0.05  # seconds of a step


class Slow(StubGenerator):
    """Generates the same answer for every prompt, in `seconds` for each batch."""

    def __init__(self, token_ids: list[int], seconds: float):
        self.completion, self.seconds = Completion(token_ids, True), seconds

    def answer(self, prompt: list[int]) -> Completion:
        return self.completion

    def generate(self, *args, **kwargs) -> list[Completion]:
        time.sleep(self.seconds)
        return super().generate(*args, **kwargs)


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


def make_roles(num_turns: int, generation: float) -> Roles:
    """Make roles whose generator is a stub."""
    chat = ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL))
    options = RoleOptions(action_format="text", max_turns=num_turns, max_completion_length=8)
    return Roles(Slow(chat.completion("take red"), generation), chat, COMPACT_PROMPTS, options)


def seconds_of(environment, num_episodes: int, num_turns: int, generation: float, runs: int = 1) -> list[float]:
    """Return the seconds of each rollout. The first creates the instances."""
    roles, pool, seconds = make_roles(num_turns, generation), EnvironmentPool(environment), []
    for _ in range(runs):
        start = time.perf_counter()
        episodes = play_episodes(pool, [{}] * num_episodes, roles)
        seconds.append(time.perf_counter() - start)
        assert all(episode.score == 1 and len(episode.turns) == num_turns for episode in episodes)
    pool.close()
    return seconds


def measure(kind: str, generation: float, num_episodes: int, num_turns: int, latency: float, runs: int) -> dict:
    """Compare rollouts with the ideal."""
    environment = make_environment(latency, num_turns, is_async=kind == "async")
    seconds_of(environment, 2, num_turns, generation)  # warm up
    first, *others = seconds_of(environment, num_episodes, num_turns, generation, 1 + runs)
    ideal = num_turns * (latency + generation)
    return {
        "environment": kind,
        "generation_seconds": generation,
        "seconds": round(median(others), 3),
        "first_seconds": round(first, 3),
        "all_seconds": [round(value, 3) for value in others],
        "ideal_seconds": round(ideal, 3),
        "ratio_to_ideal": round(median(others) / ideal, 2),
    }


def main():
    args = reporting.parser(__doc__).parse_args()
    rows = []
    for generation in (0.0, 0.1):
        for kind in ("blocking", "async"):
            rows.append(measure(kind, generation, NUM_EPISODES, NUM_TURNS, LATENCY, runs=5))
            print(json.dumps(rows[-1]), flush=True)
    report = {
        **{"episodes": NUM_EPISODES, "turns": NUM_TURNS, "latency_seconds": LATENCY},
        **reporting.setting("torch", "transformers", "trl"),
        "ratio_to_ideal": max(row["ratio_to_ideal"] for row in rows),
        "rows": rows,
    }
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
