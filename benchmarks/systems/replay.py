# SPDX-License-Identifier: Apache-2.0

"""
The cost of a replay buffer: memory, adding, sampling, updating, saving and loading, from a thousand to a million
transitions, each size in a process with a full buffer. `memory_ratio` relates the growth of the resident set (after
`malloc_trim`) to the size of the token ids as int32. Episodes have ten turns with 100 to 300 tokens of action and as
many of observation: `text` is Python's documentation in pieces that get arbitrary ids, `random` has ids that cannot be
compressed. `sample_draw_us` is the part of `sample_us` that grows with the buffer; times are medians of the fastest of
five rounds, and `_cpu` excludes waiting for a processor or a disk.

python -m benchmarks.systems.replay --json benchmarks/results/replay.json
"""

import argparse
import ctypes
import json
import os
import re
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks import reporting
from trl_nlac import PrioritizedReplay
from trl_nlac.types import Episode, Turn


VOCABULARY = 151_643  # of Qwen2.5
NUM_TURNS, BATCH_SIZE, ROUNDS, REPETITIONS = 10, 64, 5, 50


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
        observation, first = self.cut(300)
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
        opening = ({"role": "user", "content": first},)
        return Episode({"seed": int(self.rng.integers(10**6))}, opening, token_ids, tuple(turns), True, False)


def resident() -> int:
    """Return the bytes of this process in memory."""
    pa.default_memory_pool().release_unused()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return reporting.resident_bytes()


def full_buffer(source: Source, size: int):
    """Fill a buffer; returns it, the times of adding, how many were added, and the bytes of its tokens."""
    replay = PrioritizedReplay(size)
    adding, num_added, lengths = Stopwatch(), 0, []
    while num_added < 1.2 * size:  # more than fit, so that the oldest are dropped
        chunk = [source.episode() for _ in range(min(100, size // NUM_TURNS))]
        with adding:
            replay.add(chunk)
        num_added += len(chunk) * NUM_TURNS
        lengths += [len(episode.token_ids) for episode in chunk]
    return replay, adding, num_added, 4 * sum(lengths[-(len(replay) // NUM_TURNS) :])


def times_of(replay: PrioritizedReplay) -> dict[str, float]:
    """Time sampling, drawing and updating, in microseconds."""
    rng = np.random.default_rng(1)
    rounds = []
    for _ in range(ROUNDS):
        watches = {name: Stopwatch() for name in ("sample", "sample_draw", "update")}
        for _ in range(REPETITIONS):
            with watches["sample"]:
                ids = [sample.transition_id for sample in replay.sample(BATCH_SIZE)]
            fractions, priorities = rng.random(len(ids)), rng.exponential(size=len(ids))
            with watches["sample_draw"]:
                replay._tree.draw(fractions)
            with watches["update"]:
                replay.update_priorities(ids, priorities)
        rounds.append({f"{name}_us": 1e6 * median(watch.wall) for name, watch in watches.items()})
        rounds[-1] |= {f"{name}_us_cpu": 1e6 * median(watch.cpu) for name, watch in watches.items()}
    return {name: round(min(times[name] for times in rounds), 1) for name in rounds[0]}


def measure(size: int, kind: str, directory: Path | None) -> dict:
    """Measure a buffer of `size` transitions, one row of the report."""
    source = Source(kind, NUM_TURNS)
    warm_up = PrioritizedReplay(100)
    warm_up.add([source.episode()])
    warm_up.sample(BATCH_SIZE)
    before = resident()
    replay, adding, num_added, token_bytes = full_buffer(source, size)
    memory = resident() - before
    times = times_of(replay)
    saving, loading = Stopwatch(), Stopwatch()
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        peak = reporting.peak_bytes()
        with saving:
            replay.save(folder)
        saved = sum(path.stat().st_size for path in Path(folder).iterdir())
        growth = reporting.peak_bytes() - peak
        with loading:
            replay.load(folder)
    return {
        "transitions": size,
        "kind": kind,
        "tokens_per_transition": round(token_bytes / 4 / len(replay), 1),
        "memory_bytes": memory,
        "memory_ratio": round(memory / token_bytes, 3),
        "add_per_second": round(num_added / sum(adding.wall)),
        "add_per_second_cpu": round(num_added / sum(adding.cpu)),
        **times,
        "save_seconds": round(saving.wall[0], 2),
        "saved_bytes": saved,
        "peak_growth_of_save_bytes": growth,
        "load_seconds": round(loading.wall[0], 2),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main():
    parser = reporting.parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--directory", type=Path, help="of saved episodes; default: a temporary folder")
    # Options of the process of one measurement.
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="text", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.size is not None:
        print(json.dumps(measure(args.size, args.kind, args.directory)))
        return
    runs = [*((size, "text") for size in args.sizes), (10**4, "random")]
    rows = []
    for args.size, args.kind in runs:
        options = reporting.same_options(args, "size", "kind", "directory")
        rows.append(reporting.alone("benchmarks.systems.replay", *options))
        print(json.dumps(rows[-1]), flush=True)
    report = {
        "turns": NUM_TURNS,
        "batch_size": BATCH_SIZE,
        **reporting.setting("numpy", "pyarrow"),
        "memory_ratio": max(row["memory_ratio"] for row in rows),
        "sample_us": {str(row["transitions"]): row["sample_us"] for row in rows if row["kind"] == "text"},
        "rows": rows,
    }
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
