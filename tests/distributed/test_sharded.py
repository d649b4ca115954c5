# SPDX-License-Identifier: Apache-2.0

"""With DDP, DeepSpeed and FSDP2, two processes give the results of one process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.launch import launch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.method.target_weights import InitialWeights, KeptWeights, TargetWeights
from trl_nlac.training.checkpoint import _load_weights


pytest.importorskip("deepspeed")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="DeepSpeed builds an extension for gloo")

HERE = Path(__file__).parent
RUNS = ("sampled", "resumed", "distill", "passes", "lora")


@pytest.fixture(scope="module", autouse=True)
def deepspeed_on_cpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


@pytest.fixture(scope="module")
def one_process(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("one_process")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parent.parent)])}
    command = [sys.executable, str(HERE / "same_batches.py"), "single", str(directory)]
    subprocess.run(command, check=True, env=environment, timeout=900)
    return directory


KEPT = {"target_weights.safetensors": TargetWeights, "initial_weights.safetensors": InitialWeights}


def saved_weights(checkpoint: Path, name: str) -> dict:
    weights: KeptWeights = KEPT[name](AutoModelForCausalLM.from_pretrained(TINY_MODEL))
    _load_weights(checkpoint, weights, name)
    return weights.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "zero2", "zero3", "zero3_offload", "fsdp2"])
def test_trains_as_one_process(kind, one_process, tmp_path):
    """
    Losses, weights and target weights are the same, up to the order of float32 additions: 1e-5 of a loss and, of a
    weight, a hundredth of the first step (1e-3). The initial weights are those of the model.
    """
    launch(str(HERE / "same_batches.py"), kind, str(tmp_path))
    for run in RUNS:
        result, expected = (json.loads((path / f"{run}.json").read_text()) for path in (tmp_path, one_process))
        assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5), run
        assert result["distance"] == pytest.approx(expected["distance"], rel=1e-5) and result["distance"] > 0, run
        weights, expected = (load_file(path / f"{run}.safetensors") for path in (tmp_path, one_process))
        assert_close(weights, expected, rtol=0, atol=1e-5, msg=lambda message, run=run: f"{run}: {message}")

    checkpoints = [path / "sampled" / "checkpoint-2" for path in (tmp_path, one_process)]
    for name in KEPT:
        assert_close(*(saved_weights(checkpoint, name) for checkpoint in checkpoints), rtol=0, atol=1e-6)
    own = dict(AutoModelForCausalLM.from_pretrained(TINY_MODEL).named_parameters())
    assert_close(saved_weights(checkpoints[0], name), own, rtol=0, atol=0)
    if kind != "ddp":  # where every process has all of them
        shutil.rmtree(checkpoints[0] / "nlac" / "rank_00001")
        for name in KEPT:
            with pytest.raises(ValueError, match=f"lacks a part of {name}"):
                saved_weights(checkpoints[0], name)


def test_target_weights_of_shards(tmp_path):
    """Swap, average, distance and files of every kind of shard, bit for bit; the script has the checks."""
    launch(str(HERE / "target_weights_of_shards.py"), str(tmp_path))
