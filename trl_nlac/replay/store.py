# SPDX-License-Identifier: Apache-2.0

"""Storage of the replay buffer's episodes: compressed, in memory up to a limit, older ones in files."""

import json
import struct
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from ..types import Episode, Turn


MAX_FILE_SIZE = 1 << 30  # bytes; disk space is freed file by file
_CODEC = pa.Codec("zstd", compression_level=1)
_SIZES = struct.Struct("<III")  # of the token ids, compressed and uncompressed, and of the rest, uncompressed


class _Place(NamedTuple):
    file: IO[bytes]
    offset: int
    length: int


class EpisodeStore:
    """
    Episodes by number, first in, first out. Each is stored as one compressed record, smaller than its token ids, and
    decoded on access; as long as an episode is referenced, the same object is returned.

    Args:
        memory_limit (`int`, *optional*):
            Bytes of memory for the records. Beyond it, the oldest ones move to files. If `None`, all stay in memory.
        directory (`str` or `Path`, *optional*):
            Folder of these files. If the system allows it, they have no name and disappear with the process, however
            it ends. If `None`, the system's folder for temporary files.
    """

    def __init__(self, memory_limit: int | None = None, directory: str | Path | None = None):
        self.memory_limit = memory_limit
        self.directory = directory
        self.memory_size = 0  # bytes of the records in memory
        self._in_memory: OrderedDict[int, bytes] = OrderedDict()  # oldest first; every record on disk is older
        self._on_disk: OrderedDict[int, _Place] = OrderedDict()
        self._alive: WeakValueDictionary[int, Episode] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._on_disk) + len(self._in_memory)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers, oldest first."""
        yield from self._on_disk
        yield from self._in_memory

    def __getitem__(self, number: int) -> Episode:
        episode = self._alive.get(number)
        if episode is None:
            record = self._in_memory.get(number)
            episode = self._alive[number] = decode_episode(self._read(number) if record is None else record)
        return episode

    @property
    def disk_size(self) -> int:
        """Bytes of the records in files."""
        return sum(place.length for place in self._on_disk.values())

    def append(self, number: int, episode: Episode) -> None:
        record = encode_episode(episode)
        self._in_memory[number] = record
        self._alive[number] = episode
        self.memory_size += len(record)
        while self.memory_limit is not None and self.memory_size > self.memory_limit:
            self._spill()

    def pop_oldest(self) -> None:
        if self._on_disk:
            _, place = self._on_disk.popitem(last=False)
            if not self._on_disk or next(iter(self._on_disk.values())).file is not place.file:
                place.file.close()
        else:
            _, record = self._in_memory.popitem(last=False)
            self.memory_size -= len(record)

    def clear(self) -> None:
        while len(self):
            self.pop_oldest()
        self._alive.clear()

    def _spill(self) -> None:
        """Move the oldest record in memory to the newest file."""
        number, record = next(iter(self._in_memory.items()))
        last = next(reversed(self._on_disk.values())) if self._on_disk else None
        if last is None or last.offset + last.length + len(record) > MAX_FILE_SIZE:
            if self.directory is not None:
                Path(self.directory).mkdir(parents=True, exist_ok=True)
            place = _Place(tempfile.TemporaryFile(dir=self.directory), 0, len(record))
        else:
            place = _Place(last.file, last.offset + last.length, len(record))
        place.file.seek(place.offset)
        place.file.write(record)
        self._on_disk[number] = place
        del self._in_memory[number]
        self.memory_size -= len(record)

    def _read(self, number: int) -> bytes:
        place = self._on_disk[number]
        place.file.seek(place.offset)
        return place.file.read(place.length)


def encode_episode(episode: Episode) -> bytes:
    """
    Encode an episode as one compressed record: its token ids, and the rest as JSON.

    Raises:
        TypeError: If JSON cannot hold its task.
    """
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
