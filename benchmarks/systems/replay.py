# SPDX-License-Identifier: Apache-2.0

"""
The cost of a replay buffer: memory, adding, sampling, saving and loading, from a thousand to a million transitions,
each size in a process with a full buffer. `memory_ratio` relates the growth of the resident set (after `malloc_trim`)
to the size of the token ids as int32. Episodes have ten turns with 100 to 300 tokens of action and as many of
observation: Python's documentation in pieces that get arbitrary ids. Times are medians of the fastest of five rounds.

python -m benchmarks.systems.replay --json benchmarks/results/replay.json
"""

import argparse
import ctypes
import json
import re
import tempfile
import time
from collections.abc import Callable
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


class Source:
    """Makes episodes from a text."""

    def __init__(self, num_turns: int, seed: int = 0):
        self.num_turns = num_turns
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
        opening = ({"role": "user", "content": first},)
        return Episode({"seed": int(self.rng.integers(10**6))}, opening, token_ids, tuple(turns), True, False)


def resident() -> int:
    """Return the bytes of this process in memory."""
    pa.default_memory_pool().release_unused()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return reporting.resident_bytes()


def full_buffer(source: Source, size: int):
    """Fill a buffer; returns it, the seconds of adding, how many were added, and the bytes of its tokens."""
    replay = PrioritizedReplay(size)
    seconds, num_added, lengths = 0.0, 0, []
    while num_added < 1.2 * size:  # more than fit, so that the oldest are dropped
        chunk = [source.episode() for _ in range(min(100, size // NUM_TURNS))]
        seconds += seconds_of(lambda chunk=chunk: replay.add(chunk))
        num_added += len(chunk) * NUM_TURNS
        lengths += [len(episode.token_ids) for episode in chunk]
    return replay, seconds, num_added, 4 * sum(lengths[-(len(replay) // NUM_TURNS) :])


def seconds_of(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def sample_us(replay: PrioritizedReplay) -> float:
    """Time sampling, between updates of priorities, in microseconds."""
    rng, rounds = np.random.default_rng(1), []
    for _ in range(ROUNDS):
        times = []
        for _ in range(REPETITIONS):
            start = time.perf_counter()
            samples = replay.sample(BATCH_SIZE)
            times.append(time.perf_counter() - start)
            priorities = rng.exponential(size=BATCH_SIZE)
            replay.update_priorities([sample.transition_id for sample in samples], priorities)
        rounds.append(median(times))
    return round(1e6 * min(rounds), 1)


def measure(size: int) -> dict:
    """Measure a buffer of `size` transitions, one row of the report."""
    source = Source(NUM_TURNS)
    warm_up = PrioritizedReplay(100)
    warm_up.add([source.episode()])
    warm_up.sample(BATCH_SIZE)
    before = resident()
    replay, adding, num_added, token_bytes = full_buffer(source, size)
    memory, sampling = resident() - before, sample_us(replay)
    with tempfile.TemporaryDirectory() as folder:
        saving = seconds_of(lambda: replay.save(folder))
        saved = sum(path.stat().st_size for path in Path(folder).iterdir())
        loading = seconds_of(lambda: replay.load(folder))
    return {
        "transitions": size,
        "tokens_per_transition": round(token_bytes / 4 / len(replay), 1),
        "memory_bytes": memory,
        "memory_ratio": round(memory / token_bytes, 3),
        "add_per_second": round(num_added / adding),
        "sample_us": sampling,
        "save_seconds": round(saving, 2),
        "saved_bytes": saved,
        "load_seconds": round(loading, 2),
    }


def main():
    parser = reporting.parser(__doc__)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)  # of the process of one measurement
    args = parser.parse_args()
    if args.size is not None:
        print(json.dumps(measure(args.size)))
        return
    rows = []
    for size in (10**3, 10**4, 10**5, 10**6):
        rows.append(reporting.alone("benchmarks.systems.replay", "--size", size))
        print(json.dumps(rows[-1]), flush=True)
    report = {
        "turns": NUM_TURNS,
        "batch_size": BATCH_SIZE,
        **reporting.setting("numpy", "pyarrow"),
        "memory_ratio": max(row["memory_ratio"] for row in rows),
        "rows": rows,
    }
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
