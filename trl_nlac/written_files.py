# SPDX-License-Identifier: Apache-2.0

"""How files are written into folders that others can have filled: no link in them is followed. And their checksums."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from .types import RunRefused


_CHUNK = 1 << 22  # bytes read at once


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """
    Yield the path of a new file, which nobody can know before. Once it is written, it takes the place of `path`, also
    where that is a link. A reader never sees half of it, and a process that is killed leaves what was there. Only what
    is in `/dev`, such as `/dev/stdout`, is written to as it is. Links in the folders of `path` are followed.
    """
    path = Path(path)
    if path.is_relative_to("/dev"):
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"_{uuid4().hex}.new")
    try:
        yield written
        os.replace(written, path)
    finally:
        written.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write a value to a file, whose folder need not exist, in place of what was there."""
    with replaced(path) as written:
        written.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def append_line(path: str | Path, line: str) -> None:
    """Append a line to a file of the package's own, after a line that was not finished; refuse a link."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_link(path)
    with open(path, "ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        end = b"" if file.read() in (b"", b"\n") else b"\n"
        file.write(end + f"{line}\n".encode(errors="replace"))


def refuse_link(path: Path) -> None:
    """Refuse a file that is a link, with [`RunRefused`]."""
    if path.is_symlink():
        raise RunRefused(f"{str(path)!r} is a link, which no run makes. Remove it.")


def refuse_links(folder: str | Path) -> None:
    """Raise [`RunRefused`] if a link leads out of a folder into which libraries write; checkpoints can have them."""
    inside = os.path.realpath(folder) + os.sep
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith("checkpoint-")]
        for path in (os.path.join(parent, name) for name in (*folders, *files)):
            if os.path.islink(path) and not (os.path.realpath(path) + os.sep).startswith(inside):
                raise RunRefused(f"{path!r} is a link out of the folder, which no run makes. Remove it.")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
