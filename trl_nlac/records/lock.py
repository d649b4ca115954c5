# SPDX-License-Identifier: Apache-2.0

"""A lock on the folder of a run: two runs that write into it would destroy each other's files."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..types import RunRefused
from ..written_files import refuse_link, refuse_links


logger = logging.getLogger(__name__)

LOCK = "_lock"  # not uploaded with the output folder, because of the underscore


@contextmanager
def locked(run: str | Path) -> Iterator[None]:
    """
    Hold the lock of a run's folder, which is made if it does not exist. One process of a run holds it for all of them.
    The system releases it when the process ends, however it ends; child processes do not inherit it. On a shared file
    system it holds on all hosts, if the file system has locks (NFS does on Linux); otherwise a warning says that
    nothing prevents a second run. Raise [`RunRefused`] if another run holds the lock, or if the folder has links out
    of it.
    """
    path = Path(run, LOCK)
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_links(path.parent)
    # What is not locked by the system stays locked after a crash: no fallback.
    lock = FileLock(path, blocking=False, thread_local=False, fallback_to_soft=False, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunRefused(
            f"Another run is writing into `output_dir` {str(path.parent)!r} now: {_owner(path)}. Wait until it "
            "ends, or choose another folder."
        ) from error
    except OSError as error:
        refuse_link(path)
        if error.filename is not None:  # it could not be opened
            raise
        logger.warning(
            f"{path.parent} cannot be locked ({error}): nothing prevents a second run in it, which would destroy the "
            "files of this one."
        )
    try:
        yield
    finally:
        lock.release()


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())


def _owner(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "a process of which nothing is known"
    except OSError:  # on Windows, where a lock keeps others from reading
        return "a process of which nothing is known"
