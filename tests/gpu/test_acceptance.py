# SPDX-License-Identifier: Apache-2.0

"""The stages of `make test-gpu`: on a GPU where there is one, as far as they can elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu.acceptance import STAGES


HERE = Path(__file__).parent
SCRIPT = HERE / "acceptance.py"
# Stages that need nothing but torch, transformers and accelerate must not import these.
OTHERS = ("trl", "datasets", "peft", "deepspeed", "vllm", "pyarrow", "pandas", "aiohttp")  # transformers has rich
WITHOUT = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec


def find_others(name, path=None, target=None):
    return None if name.partition(".")[0] in {others} else find_spec(name, path, target)


PathFinder.find_spec = staticmethod(find_others)
"""


def accept(tmp_path: Path, stages: list[str], device: str, environment: dict[str, str] | None = None) -> dict:
    """Run stages, and return their report."""
    files = ["--json", str(tmp_path / "gpu.json"), "--table", str(tmp_path / "gpu.md")]
    small = ["--small"] if device != "cuda" else []
    command = [sys.executable, str(SCRIPT), "--stages", *stages, "--device", device, *small, *files]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3600, env={**os.environ, **(environment or {})}
    )
    report = json.loads((tmp_path / "gpu.json").read_text())
    failed = {name: stage["reason"] for name, stage in report["stages"].items() if stage["result"] == "failed"}
    assert (done.returncode == 0) == (not failed), done.stderr
    assert not failed, failed
    assert all(f"| {stage} | " in (tmp_path / "gpu.md").read_text() for stage in stages)
    return report["stages"]


@pytest.mark.slow
def test_stages_run_with_torch_and_transformers_alone(tmp_path):
    """On the CPU, in small: Python finds nothing else."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT.format(others=set(OTHERS)))
    stages = accept(tmp_path, ["device", "training", "memory"], "cpu", {"PYTHONPATH": str(tmp_path / "site")})
    assert {stage["result"] for stage in stages.values()} == {"passed"}
    assert stages["device"]["found"]["losses of trees"] < 1e-4


def test_the_first_stage_on_the_stand_in(tmp_path):
    stages = accept(tmp_path, ["device"], "standin:1")
    assert stages["device"]["found"]["answers that differ, greedy"] == 0


def test_the_default_precision_with_adapters(tmp_path):
    """And what shards on GPUs says so."""
    stages = accept(tmp_path, ["lora", "zero3"], "cpu")
    assert stages["lora"]["found"]["last loss"] > 0 and stages["zero3"]["result"] == "left out"


def test_what_is_missing_is_said(tmp_path):
    if torch.cuda.device_count() > 1:
        pytest.skip("nothing is missing")
    stages = accept(tmp_path, ["server"], "cpu")
    assert stages["server"]["result"] == "left out" and stages["server"]["reason"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("stage", STAGES)
def test_on_a_gpu(tmp_path, stage):
    accept(tmp_path, [stage], "cuda")
