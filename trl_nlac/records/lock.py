# SPDX-License-Identifier: Apache-2.0

"""A lock on the folder of a run: two runs that write into it would destroy each other's files."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..types import RunRefused


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

logger = logging.getLogger(__name__)

LOCK = "_lock"  # not uploaded with the output folder, because of the underscore

_held: dict[Path, IO[str]] = {}  # by this process


@contextmanager
def locked(run: str | Path) -> Iterator[None]:
    """
    Hold the lock of a run's folder. One process of a run holds it for all of them. The system releases it when the
    process ends, however it ends; child processes do not inherit it. On a shared file system it holds on all hosts, if
    the file system has locks (NFS does on Linux); otherwise, and on Windows, a warning says that nothing prevents a
    second run.

    Args:
        run (`str` or `Path`):
            Folder of the run, made if it does not exist.

    Raises:
        RunRefused: If another process holds the lock.
    """
    path = Path(run, LOCK)
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.resolve()
    if place in _held:
        raise _refusal(path, "this process, in another thread")
    with open(path, "a+", encoding="utf-8") as file:
        _acquire(file, path)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        _held[place] = file
        try:
            yield
        finally:
            _held.pop(place, None)


def _acquire(file: IO[str], path: Path) -> None:
    try:
        if fcntl is None:
            raise OSError("Python's `fcntl` is missing on this system")
        # Of the open file. One of `lockf` would be lost as soon as the process closes the file anywhere: copies it.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        file.seek(0)
        raise _refusal(path, file.read() or "a process of which nothing is known") from error
    except OSError as error:
        logger.warning(
            f"{path.parent} cannot be locked ({error}): nothing prevents a second run in it, which would destroy the "
            "files of this one."
        )


def _leave_to_parent() -> None:
    """Close the locked files in a forked process, which would keep the locks for as long as it lives."""
    for file in _held.values():
        file.close()
    _held.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_leave_to_parent)


def _refusal(path: Path, owner: str) -> RunRefused:
    return RunRefused(
        f"Another run is writing into `output_dir` {str(path.parent)!r} now: {owner}. Wait until it ends, or choose "
        "another folder."
    )
