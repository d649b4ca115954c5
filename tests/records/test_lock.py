# SPDX-License-Identifier: Apache-2.0

import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from trl_nlac.records.lock import locked
from trl_nlac.types import RunRefused


def hold(folder: Path, sender: Connection) -> None:
    with locked(folder):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        sender.send(child.pid)
        time.sleep(60)


def test_a_second_run_is_refused_until_the_first_is_dead(tmp_path):
    """However it dies: a child process that is left over does not hold the lock."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()
    holder = context.Process(target=hold, args=(tmp_path, sender))
    holder.start()
    child = receiver.recv()
    try:
        with pytest.raises(RunRefused, match=rf"`output_dir`.*now: process {holder.pid} on .*choose another folder"):
            with locked(tmp_path):
                pass
        holder.kill()
        holder.join()
        with locked(tmp_path):
            assert (tmp_path / "_lock").read_text().startswith(f"process {os.getpid()} on ")
    finally:
        holder.kill()
        os.kill(child, signal.SIGKILL)


def test_a_copy_of_the_folder_does_not_release_it(tmp_path):
    with locked(tmp_path / "run"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        assert is_refused(tmp_path / "run")


def test_a_forked_process_that_goes_on_does_not_hold_it(tmp_path):
    context = multiprocessing.get_context("fork")
    with locked(tmp_path):
        child = context.Process(target=time.sleep, args=(60,))
        child.start()
        assert is_refused(tmp_path)
    try:
        assert not is_refused(tmp_path)
    finally:
        child.kill()
        child.join()


def test_a_second_run_of_the_same_process(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with locked(tmp_path):
        for place in (tmp_path, tmp_path / "link"):
            with pytest.raises(RunRefused, match=f"now: process {os.getpid()} on "), locked(place):
                pass
        assert is_refused(tmp_path)
    with locked(tmp_path):
        pass


def is_refused(folder: Path) -> bool:
    other = multiprocessing.get_context("spawn").Process(target=lock, args=(folder,))
    other.start()
    other.join()
    return other.exitcode == 1


def lock(folder: Path) -> None:
    with locked(folder):
        pass
