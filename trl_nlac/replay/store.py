# SPDX-License-Identifier: Apache-2.0

"""Storage of the replay buffer's episodes, compressed."""

import json
import struct
from collections import OrderedDict
from collections.abc import Iterator
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from ..types import Episode, Turn


_CODEC = pa.Codec("zstd", compression_level=1)
_SIZES = struct.Struct("<III")  # of the token ids, compressed and uncompressed, and of the rest, uncompressed


class EpisodeStore:
    """Episodes by number, first in, first out: compressed records, decoded on access, once while in use."""

    def __init__(self):
        self._records: OrderedDict[int, bytes] = OrderedDict()  # oldest first
        self._alive: WeakValueDictionary[int, Episode] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers, oldest first."""
        return iter(self._records)

    def __getitem__(self, number: int) -> Episode:
        episode = self._alive.get(number)
        if episode is None:
            episode = self._alive[number] = decode_episode(self._records[number])
        return episode

    def append(self, number: int, episode: Episode) -> None:
        self._records[number] = encode_episode(episode)
        self._alive[number] = episode

    def pop_oldest(self) -> None:
        self._records.popitem(last=False)

    def clear(self) -> None:
        self._records.clear()
        self._alive.clear()


def encode_episode(episode: Episode) -> bytes:
    """Encode token ids, and the rest as JSON, in one record; a `TypeError` if JSON cannot hold the task."""
    token_ids = np.asarray(episode.token_ids, dtype=np.int32).tobytes()
    turns = [list(vars(turn).values()) for turn in episode.turns]
    fields = {**vars(episode), "turns": turns}
    del fields["token_ids"], fields["extra"], fields["segments"]
    try:
        rest = json.dumps(fields, ensure_ascii=False).encode(errors="surrogatepass")
    except TypeError as error:
        raise TypeError(
            f"The task {episode.task} cannot be stored: {error}. Use columns that JSON can hold."
        ) from error
    # Compressed separately: text between them would break the alignment of repeated token ids.
    compressed = _CODEC.compress(token_ids)
    sizes = _SIZES.pack(len(compressed), len(token_ids), len(rest))
    return b"".join((sizes, compressed, _CODEC.compress(rest)))


def decode_episode(record: bytes) -> Episode:
    """Decode a record of [`encode_episode`]. The token ids are read-only."""
    compressed_size, tokens_size, rest_size = _SIZES.unpack_from(record)
    view = memoryview(record)[_SIZES.size :]
    token_ids = _CODEC.decompress(view[:compressed_size], tokens_size, asbytes=True)
    fields = json.loads(_CODEC.decompress(view[compressed_size:], rest_size, asbytes=True))
    fields["turns"] = tuple(Turn(*values) for values in fields["turns"])
    fields |= {name: tuple(fields[name]) for name in ("opening", "tools", "messages")}
    return Episode(token_ids=np.frombuffer(token_ids, dtype=np.int32), **fields)
