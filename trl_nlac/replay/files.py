# SPDX-License-Identifier: Apache-2.0

"""Parquet files of episodes, their priorities and their targets, written and read a few episodes at a time."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..types import Episode


ROW_GROUP_TOKENS = 1 << 20
_TURN = pa.struct(
    {
        "prompt_end": pa.int32(),
        "action_length": pa.int32(),
        "action": pa.string(),
        "next_observation": pa.string(),
        "reward": pa.float64(),
        "prompt_start": pa.int32(),
        "words": pa.string(),
    }
)
_EPISODE = pa.schema(
    {
        "task": pa.string(),  # JSON
        "opening": pa.string(),  # JSON
        "token_ids": pa.list_(pa.int32()),
        "turns": pa.list_(_TURN),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "failure": pa.string(),
        "is_log": pa.bool_(),
        "tools": pa.string(),  # JSON
        "messages": pa.string(),  # JSON
        "priorities": pa.list_(pa.float64()),
        "targets": pa.list_(pa.string()),  # JSON
    }
)


class StoredEpisode(NamedTuple):
    """An episode with the priority of each transition, and its kept target as JSON, if it has one."""

    episode: Episode
    priorities: np.ndarray
    targets: Sequence[str | None]


def write_episodes(path: Path, episodes: Iterable[StoredEpisode]) -> None:
    """Write episodes in row groups of a few megabytes."""
    with pq.ParquetWriter(path, _EPISODE, compression="zstd") as writer:
        rows, num_tokens = [], 0
        for stored in episodes:
            rows.append(_row(stored))
            num_tokens += len(stored.episode.token_ids)
            if num_tokens >= ROW_GROUP_TOKENS:
                writer.write_table(pa.Table.from_pylist(rows, schema=_EPISODE))
                rows, num_tokens = [], 0
        writer.write_table(pa.Table.from_pylist(rows, schema=_EPISODE))


def read_episodes(path: Path, keep: np.ndarray | None = None) -> Iterator[StoredEpisode]:
    """Read a file of [`write_episodes`] in order, or the episodes of a mask; a `ValueError` if it is another file."""
    try:
        yield from _read(path, keep)
    except OSError:
        raise
    except Exception as error:  # values of others can make the libraries raise anything
        raise ValueError(f"{path} is no file of episodes: {type(error).__name__}: {error}") from error


def _read(path: Path, keep: np.ndarray | None) -> Iterator[StoredEpisode]:
    start = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=64):
            end = start + len(batch)
            table = pa.Table.from_batches([batch]).select(_EPISODE.names).cast(_EPISODE)
            if keep is not None:
                table = table.filter(pa.array(keep[start:end]))
            start = end
            token_ids, priorities = table["token_ids"], table["priorities"]
            for i, row in enumerate(table.drop_columns(["token_ids", "priorities"]).to_pylist()):
                targets = row.pop("targets")
                episode = _episode(row, token_ids[i].values.to_numpy().copy())
                yield StoredEpisode(episode, priorities[i].values.to_numpy(), targets)


def episode_lengths(path: Path) -> np.ndarray:
    """Return the number of transitions of each episode in a file, reading nothing else."""
    priorities = pq.read_table(path, columns=["priorities"])["priorities"]
    return pc.list_value_length(priorities).to_numpy().astype(np.int64)


def _row(stored: StoredEpisode) -> dict[str, Any]:
    episode = stored.episode
    return {
        **vars(episode),
        "task": json.dumps(episode.task),
        "opening": json.dumps(episode.opening),
        "tools": json.dumps(episode.tools),
        "messages": json.dumps(episode.messages),
        "turns": [vars(turn) for turn in episode.turns],
        "priorities": stored.priorities,
        "targets": stored.targets,
    }


def _episode(row: dict[str, Any], token_ids: np.ndarray) -> Episode:
    parsed = {name: json.loads(row[name]) for name in ("task", "opening", "tools", "messages")}
    objects = (parsed["task"], *parsed["opening"], *parsed["tools"], *parsed["messages"])
    needed = (row["terminated"], row["truncated"], row["is_log"], *(turn["reward"] for turn in row["turns"]))
    if None in needed or not all(isinstance(value, dict) for value in objects):
        raise TypeError("a value is missing, or no object")
    return Episode.of_row({**row, **parsed, "token_ids": token_ids})
