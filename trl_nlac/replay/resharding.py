# SPDX-License-Identifier: Apache-2.0

"""Redistribution of saved replay buffers to another number of processes."""

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from .files import StoredEpisode, episode_lengths, read_episodes


def read_share(paths: Sequence[Path], rank: int, world_size: int) -> Iterator[StoredEpisode]:
    """
    Read one process's share of the saved episodes, with their priorities and targets, oldest first. Paths are files of
    [`~replay.files.write_episodes`], one of each process that saved, in the order of their ranks. Every episode
    belongs to exactly one of `world_size` shares, whose numbers of transitions differ by at most the length of the
    longest episode.
    """
    sources, owners = deal_episodes([episode_lengths(path) for path in paths], world_size)
    readers = [read_episodes(path, keep=owners[sources == i] == rank) for i, path in enumerate(paths)]
    for source in sources[owners == rank]:
        yield next(readers[source])


def deal_episodes(lengths: Sequence[np.ndarray], world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Assign each episode to the process that has the fewest transitions so far. Lengths are numbers of transitions of
    the episodes of each process that saved, oldest first. Return the source and the new process of each episode,
    oldest first, that is, by the number of transitions after it in its buffer. The episodes of one buffer stay in
    order.
    """
    sources = np.repeat(np.arange(len(lengths)), [len(of_one) for of_one in lengths])
    ages = np.concatenate([of_one.sum() - of_one.cumsum() for of_one in lengths])
    order = np.lexsort((sources, -ages))
    shares = [(0, rank) for rank in range(world_size)]
    owners = np.empty(len(order), dtype=np.int64)
    for i, length in enumerate(np.concatenate(lengths)[order].tolist()):
        size, rank = shares[0]
        heapq.heapreplace(shares, (size + length, rank))
        owners[i] = rank
    return sources[order], owners
