# SPDX-License-Identifier: Apache-2.0

"""What happens around a run: a clock that goes back, and another user in its folder."""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from helpers.testing_utils import make_trainer

from trl_nlac.cli.main import main
from trl_nlac.records.lock import locked
from trl_nlac.records.log import read_log


def test_a_clock_that_goes_back(tmp_path, monkeypatch):
    hours = itertools.count(500_000, -1)
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1, "max_turns": 2}
    make_trainer(tmp_path / "run", {**options, "max_steps": 2}).train()
    trainer = make_trainer(tmp_path / "run", options)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 4 and main(["report", str(tmp_path / "run")]) == 0
    seconds = [row["train_seconds"] for row in read_log(tmp_path / "run" / "training_log.jsonl").training]
    assert 0 < seconds[0] < seconds[-1] < 600 and seconds == sorted(seconds)


ENTER = """
import os, sys
from trl_nlac.records.lock import locked
from trl_nlac.types import RunRefused
os.seteuid(int(sys.argv[2]))
try:
    with locked(sys.argv[1]):
        print("entered")
except (RunRefused, PermissionError) as error:
    print(error)
"""


def enter(folder: Path, user: int) -> str:
    return subprocess.check_output([sys.executable, "-c", ENTER, str(folder), str(user)], text=True)


def test_two_users():
    """Of whom the second may write into the folder: refused with the file's name, also after the first has ended."""
    if os.name != "posix" or os.geteuid():
        pytest.skip("only root can be several users")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        with locked(folder):
            assert "_lock" in enter(folder, 65534)
        assert "_lock" in enter(folder, 65534)
        (folder / "_lock").unlink()
        assert enter(folder, 65534) == enter(folder, 0) == "entered\n"
