# SPDX-License-Identifier: Apache-2.0

"""Disks that are full or read-only, and processes that may open few files: one line, and nothing that was is lost."""

import os
import resource
import subprocess
from pathlib import Path

import pytest
from helpers.report_utils import training_row, write_log
from helpers.testing_utils import at, make_trained, make_trainer

from trl_nlac.cli.main import main


OPTIONS = {
    **{"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1, "max_turns": 2},
    **{"log_completions": True, "audit_samples": 2},
}


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options: str) -> int:
        return subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True).returncode

    if os.name != "posix" or mount("-o", "size=100m"):
        pytest.skip("a file system cannot be mounted")
    try:
        yield folder, lambda options: mount("-o", f"remount,{options}")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


@pytest.mark.parametrize("step, what", [(3, "checkpoint"), (2, "log")])
def test_a_disk_that_becomes_full(disk, step, what):
    folder, _ = disk
    run = folder / "run"
    trainer = make_trainer(run, {**OPTIONS, "logging_steps": 1 if what == "log" else 100})
    trainer.add_callback(at("step_begin", lambda: fill(folder), step))
    with pytest.raises(OSError, match="the disk is full" if what == "checkpoint" else "No space left on device"):
        trainer.train()
    assert (run / "checkpoint-2").is_dir() and not (run / "checkpoint-4").exists()
    (folder / "filler").unlink()
    trainer = make_trainer(run, OPTIONS)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 4 and (run / "checkpoint-4").is_dir()
    assert not list(run.rglob("*.new"))


def test_a_report_on_a_full_or_read_only_disk(disk, capsys):
    folder, remount = disk
    write_log(folder, [training_row(1)])
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    fill(folder)
    assert main(["report", str(folder)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert (folder / "report.html").read_text() == page and not list(folder.glob("*.new"))
    (folder / "filler").unlink()
    assert remount("ro") == 0

    assert main(["report", str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(OSError, match="Read-only file system"):
        make_trainer(folder / "run", OPTIONS).train()


def test_few_files(tmp_path):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 48, files[1]))
    try:
        make_trained(tmp_path, OPTIONS)
        assert main(["report", str(tmp_path)]) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    assert (tmp_path / "checkpoint-4").is_dir()
