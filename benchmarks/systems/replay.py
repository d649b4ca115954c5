# SPDX-License-Identifier: Apache-2.0

"""
The cost of a replay buffer: memory, adding, sampling, updating, saving and loading, from a thousand to a million
transitions.

Every measurement runs in a separate process, with a full buffer whose capacity is the number of transitions. Its
memory is the growth of the resident set (`VmRSS`, after `malloc_trim`, so that only the memory of the buffer itself
counts). `memory_ratio` relates it to the size of the token ids of the stored episodes as int32.

There are two kinds of episodes, each of `--num_turns` turns with 100 to 300 tokens of action and as many of
observation. `text` takes them from Python's documentation (the topics of `pydoc`), in pieces of at most six letters,
which get arbitrary ids from a vocabulary of 151,643. `random` has the same text, but ids that are drawn uniformly and
cannot be compressed.

`sample_us` is the time of drawing a batch. `sample_draw_us` is the time of finding its transitions in the tree, the
only part that grows with the buffer; the rest builds the episodes. These times are medians of the fastest of
`--rounds` rounds. The machine may be shared (`load_average`), so everything is timed twice: `_cpu` excludes waiting
for a processor or a disk.

python -m benchmarks.systems.replay --json benchmarks/results/replay.json
"""

import argparse
import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks import reporting
from trl_nlac import PrioritizedReplay
from trl_nlac.types import Episode, Turn


ROOT = Path(__file__).parents[2]
VOCABULARY = 151_643  # of Qwen2.5


class Stopwatch:
    """Wall and processor seconds of the `with` blocks."""

    def __init__(self):
        self.wall, self.cpu = [], []

    def __enter__(self):
        self._start = time.perf_counter(), time.process_time()

    def __exit__(self, *args):
        self.wall.append(time.perf_counter() - self._start[0])
        self.cpu.append(time.process_time() - self._start[1])


class Source:
    """Makes episodes from a text."""

    def __init__(self, kind: str, num_turns: int, seed: int = 0):
        self.kind, self.num_turns = kind, num_turns
        self.rng = np.random.default_rng(seed)
        self.text = "\n".join(topics.values())
        pieces = re.findall(r" ?\w{1,6}|\s+|[^\w\s]+", self.text)
        self.ends = np.cumsum([0, *map(len, pieces)])
        names = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
        ids = self.rng.choice(VOCABULARY, len(names), replace=False)
        self.token_ids = ids[[names[piece] for piece in pieces]].astype(np.int32)

    def cut(self, length: int) -> tuple[np.ndarray, str]:
        start = int(self.rng.integers(len(self.token_ids) - length))
        text = self.text[self.ends[start] : self.ends[start + length]]
        return self.token_ids[start : start + length], text

    def episode(self) -> Episode:
        parts, turns, length = [], [], 0
        lengths = self.rng.integers(100, 300, size=(self.num_turns, 2), endpoint=True).tolist()
        opening, first = observation, _ = self.cut(300)
        for i, (action_length, observation_length) in enumerate(lengths):
            action, answer = self.cut(action_length)
            start = length + len(observation)
            parts += [observation, action]
            length = start + action_length
            observation, seen = self.cut(observation_length)
            reward = float(i == self.num_turns - 1)
            turns.append(Turn(start, action_length, answer[len(answer) // 2 :], seen, reward))  # without its thought
        token_ids = np.concatenate(parts)
        if self.kind == "random":
            token_ids = self.rng.integers(VOCABULARY, size=len(token_ids)).astype(np.int32)
        return Episode({"seed": int(self.rng.integers(10**6))}, first, token_ids, tuple(turns), True, False)


def resident() -> int:
    """Return the bytes of this process in memory."""
    pa.default_memory_pool().release_unused()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status).group(1))


def measure(args: argparse.Namespace) -> dict:
    """Measure a buffer of `args.size` transitions, one row of the report."""
    source = Source(args.kind, args.num_turns)
    warm_up = PrioritizedReplay(100)
    warm_up.add([source.episode()])
    warm_up.sample(args.batch_size)
    del warm_up

    before = resident()
    replay = PrioritizedReplay(args.size)
    adding, num_added, chunks = Stopwatch(), 0, []
    # More than fit, so that the oldest are dropped.
    while num_added < 1.2 * args.size:
        chunk = [source.episode() for _ in range(min(100, args.size // args.num_turns))]
        with adding:
            replay.add(chunk)
        num_added += len(chunk) * args.num_turns
        chunks.append(sum(len(episode.token_ids) for episode in chunk) / len(chunk))
    num_episodes = len(replay) // args.num_turns
    num_kept = -(-num_episodes // len(chunk))
    token_bytes = 4 * num_episodes * float(np.mean(chunks[-num_kept:]))
    del chunk
    memory = resident() - before

    rng = np.random.default_rng(1)
    rounds = []
    for _ in range(args.rounds):
        sampling, drawing, updating = watches = Stopwatch(), Stopwatch(), Stopwatch()
        for _ in range(args.repetitions):
            with sampling:
                batch = replay.sample(args.batch_size)
            ids = [sample.transition_id for sample in batch]
            del batch
            fractions, priorities = rng.random(len(ids)), rng.exponential(size=len(ids))
            with drawing:
                replay._tree.draw(fractions)
            with updating:
                replay.update_priorities(ids, priorities)
        rounds.append([1e6 * median(seconds) for watch in watches for seconds in (watch.wall, watch.cpu)])
    sample, sample_cpu, draw, draw_cpu, update, update_cpu = (
        round(min(times), 1) for times in zip(*rounds, strict=True)
    )

    saving, loading = Stopwatch(), Stopwatch()
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with saving:
            replay.save(folder)
        saved = sum(path.stat().st_size for path in Path(folder).iterdir())
        save_growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
        with loading:
            replay.load(folder)
    return {
        "transitions": args.size,
        "kind": args.kind,
        "tokens_per_transition": round(token_bytes / 4 / len(replay), 1),
        "memory_bytes": memory,
        "memory_ratio": round(memory / token_bytes, 3),
        "bytes_per_transition": round(memory / len(replay), 1),
        "add_per_second": round(num_added / sum(adding.wall)),
        "add_per_second_cpu": round(num_added / sum(adding.cpu)),
        "sample_us": sample,
        "sample_us_cpu": sample_cpu,
        "sample_draw_us": draw,
        "sample_draw_us_cpu": draw_cpu,
        "update_us": update,
        "update_us_cpu": update_cpu,
        "save_seconds": round(saving.wall[0], 2),
        "save_seconds_cpu": round(saving.cpu[0], 2),
        "saved_bytes": saved,
        "peak_growth_of_save_bytes": 1024 * save_growth,
        "load_seconds": round(loading.wall[0], 2),
        "load_seconds_cpu": round(loading.cpu[0], 2),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--num_turns", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=50, help="of sampling and updating in a round")
    parser.add_argument("--directory", type=Path, help="of saved episodes; default: a temporary folder")
    # Options of the process of one measurement.
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="text", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.size is not None:
        print(json.dumps(measure(args)))
        return

    runs = [*((size, "text") for size in args.sizes), (10**4, "random")]
    rows = []
    for size, kind in runs:
        command = [sys.executable, "-m", "benchmarks.systems.replay", "--size", str(size), "--kind", kind]
        for name in ("num_turns", "batch_size", "rounds", "repetitions"):
            command += [f"--{name}", str(vars(args)[name])]
        command += ["--directory", str(args.directory)] if args.directory is not None else []
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        rows.append(json.loads(output))
        print(json.dumps(rows[-1]), flush=True)
    report = {
        "date": date.today().isoformat(),
        "turns": args.num_turns,
        "batch_size": args.batch_size,
        **reporting.setting("numpy", "pyarrow"),
        "memory_ratio": max(row["memory_ratio"] for row in rows),
        **{
            name: {str(row["transitions"]): row[name] for row in rows if row["kind"] == "text"}
            for name in ("sample_us", "sample_us_cpu")
        },
        "rows": rows,
    }
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
