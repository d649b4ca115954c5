# SPDX-License-Identifier: Apache-2.0

"""The stages of `make test-gpu`: on a GPU where there is one, as far as they can elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from gpu import acceptance
from gpu.acceptance import STAGES
from gpu.bundle import LIMIT, ROOT, copy_tree


SCRIPT = Path(__file__).with_name("acceptance.py")
# Stages that need nothing but torch, transformers and accelerate must not import these.
OTHERS = ("trl", "datasets", "peft", "deepspeed", "vllm", "pyarrow", "pandas", "aiohttp", "rich")
WITHOUT = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec


def find_others(name, path=None, target=None):
    return None if name.partition(".")[0] in {others} else find_spec(name, path, target)


PathFinder.find_spec = staticmethod(find_others)
"""


def accept(tmp_path: Path, stages: list[str], device: str, script: Path = SCRIPT, **variables: str) -> dict:
    """Run stages, and return their report."""
    files = ["--json", str(tmp_path / "gpu.json"), "--table", str(tmp_path / "gpu.md")]
    small = ["--small"] if device != "cuda" else []
    command = [sys.executable, str(script), "--stages", *stages, "--device", device, *small, *files]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=environment)
    report = json.loads((tmp_path / "gpu.json").read_text())
    failed = {name: stage["reason"] for name, stage in report["stages"].items() if stage["result"] == "failed"}
    assert (done.returncode == 0) == (not failed), done.stderr
    assert not failed, failed
    assert all(f"| {stage} | " in (tmp_path / "gpu.md").read_text() for stage in stages)
    return report["stages"]


@pytest.fixture
def alone(tmp_path) -> str:
    """A folder for `PYTHONPATH`: Python finds torch and transformers, and none of `OTHERS`."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT.format(others=set(OTHERS)))
    return str(tmp_path / "site")


def test_the_first_stages_import_torch_and_transformers_alone(alone):
    path = os.pathsep.join([alone, str(SCRIPT.parent / "stages"), str(ROOT)])
    program = [sys.executable, "-c", "import device, training, memory"]
    subprocess.run(program, check=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
def test_stages_run_with_torch_and_transformers_alone(tmp_path, alone):
    """On the CPU, in small."""
    stages = accept(tmp_path, ["device", "training", "memory"], "cpu", PYTHONPATH=alone)
    assert {stage["result"] for stage in stages.values()} == {"passed"}
    assert stages["device"]["found"]["losses of trees"] < 1e-4


def test_what_the_bundle_packs_stands_alone(tmp_path):
    """It trains adapters in the default precision there, and says what is missing."""
    copy_tree(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*")) < LIMIT / 4
    script = tmp_path / SCRIPT.relative_to(ROOT)
    stages = accept(tmp_path, ["lora", "server"], "cpu", script, PYTHONPATH="")
    assert stages["lora"]["found"]["last loss"] > 0
    if torch.cuda.device_count() < 2:
        assert stages["server"]["result"] == "left out" and stages["server"]["reason"]


def run_stand_in(tmp_path, monkeypatch, program: str, limit: float) -> dict:
    monkeypatch.setattr(acceptance, "HERE", tmp_path)
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "flex.py").write_text(program)
    return acceptance.run_stage("flex", sys.executable, "cpu", True, limit)


def test_what_a_stage_leaves_out(tmp_path, monkeypatch):
    stage = run_stand_in(tmp_path, monkeypatch, """print('{"left out": "there is no GPU"}')""", 60.0)
    assert (stage["result"], stage["reason"]) == ("left out", "there is no GPU")


def test_a_stage_that_hangs(tmp_path, monkeypatch):
    """It ends with what it has started, also in a session of its own, and its last words stay."""
    program = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""
    stage = run_stand_in(tmp_path, monkeypatch, program, 8.0)
    pid, last = stage["reason"].splitlines()
    assert (stage["result"], last) == ("failed", "not ready after 8 seconds") and stage["seconds"] < 60
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


def test_the_time_of_all_stages(tmp_path, monkeypatch):
    """Each has two thirds of what is left; without time, a stage is left out. The table shows a process's error."""
    limits, error = [], "[rank0]: ValueError: of the process\nlauncher.ChildFailedError:\n====="

    def run_stage(name, python, device, small, limit):
        limits.append(limit)
        return {"result": "failed", "seconds": 1.0, "reason": error}

    monkeypatch.setattr(acceptance, "run_stage", run_stage)
    words = ["--device", "cpu", "--stages", "device", "flex", "--table", str(tmp_path / "table.md")]
    assert acceptance.main([*words, "--total", "90"]) == 1 and limits[0] == pytest.approx(60, abs=1)
    assert "| device | failed | 1 | ValueError: of the process |" in (tmp_path / "table.md").read_text()
    acceptance.main([*words, "--total", "9"])
    assert len(limits) == 2 and "| flex | left out | 0 | no time was left |" in (tmp_path / "table.md").read_text()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("stage", STAGES)
def test_on_a_gpu(tmp_path, stage):
    accept(tmp_path, [stage], "cuda")
