# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import multiprocessing
import os
import signal
import subprocess
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from trl_nlac.records.lock import locked
from trl_nlac.types import RunRefused


def hold(folder: Path, sender: Connection) -> None:
    """Hold the lock, with a child that outlives this process."""
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


def test_it_is_released(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), locked(tmp_path / "new"):
            raise KeyError


def test_a_second_run_of_the_same_process(tmp_path):
    """The system's lock is that of a process, which would also lose it to a second one that opens and closes it."""
    (tmp_path / "link").symlink_to(tmp_path)
    context = multiprocessing.get_context("spawn")
    with locked(tmp_path):
        for place in (tmp_path, tmp_path / "link"):
            with pytest.raises(RunRefused, match="now: this process, in another thread"), locked(place):
                pass
        other = context.Process(target=lock, args=(tmp_path,))
        other.start()
        other.join()
        assert other.exitcode == 1
    with locked(tmp_path):
        pass


def lock(folder: Path) -> None:
    with locked(folder):
        pass
