# SPDX-License-Identifier: Apache-2.0

"""Trees and chunks of logits with DDP, FSDP2 and ZeRO-3."""

import shutil
from pathlib import Path

import pytest
from helpers.launch import launch


pytest.importorskip("deepspeed")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="DeepSpeed builds an extension for gloo")


def test_gradients_are_those_of_separate_sequences_in_one_process(tmp_path, monkeypatch):
    """To 1e-5, also with a teacher, adapters, tied weights, sliding windows and gradient checkpointing."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    output = launch(str(Path(__file__).parent / "same_gradients.py"), str(tmp_path))
    assert all(f"{kind} {rank} done" in output for kind in ("ddp", "fsdp2", "zero3") for rank in (0, 1))
