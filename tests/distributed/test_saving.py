# SPDX-License-Identifier: Apache-2.0

"""A run that is killed at any moment leaves complete checkpoints and resumes from the last to the same weights."""

import json
from functools import partial
from pathlib import Path

from helpers.launch import launch_script
from safetensors.torch import load_file

from benchmarks import kills
from trl_nlac.training.saving import recover


KEPT_WEIGHTS = ("target_weights.safetensors", "initial_weights.safetensors")
# Continues the run in a folder to its end or to a kill, in a separate process, and returns the exit code.
run = partial(kills.run, save_steps=1, save_total_limit=2, logging_steps=1, eval_strategy="no", eval_on_start=False)


def assert_whole(checkpoint: Path) -> None:
    names = {path.name for path in checkpoint.rglob("*")}
    needed = "model.safetensors optimizer.pt scheduler.pt rng_state.pth trainer_state.json"
    assert names >= {
        *needed.split(),
        *KEPT_WEIGHTS,
        "nlac_prompts.json",
        "episodes.parquet",
        "replay.json",
        "batches.parquet",
        "state.json",
    }
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == int(checkpoint.name[11:])
    load_file(checkpoint / "model.safetensors")


def test_a_checkpoint_that_was_being_replaced_comes_back(tmp_path):
    replaced = tmp_path / "_incomplete" / "replaced-checkpoint-3"
    replaced.mkdir(parents=True)
    (replaced / "trainer_state.json").write_text("{}")
    (tmp_path / "_incomplete" / "checkpoint-3").mkdir()
    recover(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    assert (tmp_path / "checkpoint-3" / "trainer_state.json").exists()


def test_what_a_checkpoint_holds(tmp_path):
    assert run(tmp_path, None, max_steps=1, save_only_model=True) == 0
    names = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert "model.safetensors" in names and not names & {"optimizer.pt", "nlac", *KEPT_WEIGHTS}
    state = json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())
    assert state["global_step"] == 1
    assert run(tmp_path / "all", None, max_steps=2) == 0
    checkpoint = tmp_path / "all" / "checkpoint-2"
    assert_whole(checkpoint)
    ours = [*(checkpoint / "nlac").rglob("*"), *(checkpoint / name for name in KEPT_WEIGHTS)]
    assert {path.suffix for path in ours if path.is_file()} == {".parquet", ".json", ".safetensors"}
    logs = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    assert logs[-1]["checkpoint/size_mb"] > 1 and logs[-1]["time/save"] > 0
    assert any((folder / "README.md").exists() for folder in (checkpoint, checkpoint.parent))


NODES = """
import os
import sys
from pathlib import Path

os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")

from helpers.testing_utils import make_trainer
from trl_nlac.training import saving

saving._SECONDS_OF_CACHES = 0.5
rank = int(os.environ["RANK"])
folder = Path(sys.argv[1], f"node_{rank}")
config = dict(max_steps=1, max_turns=1, per_device_train_batch_size=1, save_strategy="steps", save_steps=1)


def check(**changes):
    trainer = make_trainer(folder, {**config, **changes})
    try:
        trainer.train()
    except ValueError as error:
        print(f"{rank} at step {trainer.state.global_step}: {error}\\n", end="", flush=True)


check()
assert not list(folder.glob("_incomplete")) and not list(folder.glob("checkpoint-*"))
check(save_only_model=True)
if rank == 0:
    assert (folder / "checkpoint-1" / "model.safetensors").exists()
folder = folder / "each"
check(save_on_each_node=True)
names = {path.name for path in (folder / "checkpoint-1").rglob("*")}
assert {"trainer_state.json", "nlac_manifest.json", f"rank_0000{rank}"} <= names  # transformers: weights on node 0
assert not (folder / "_incomplete").exists()
print(f"done {rank}\\n", end="", flush=True)
"""


def test_nodes_with_disks_of_their_own(tmp_path):
    printed = launch_script(tmp_path, NODES, str(tmp_path))
    for rank in (0, 1):
        assert f"{rank} at step 0: Process 1 does not see" in printed and f"done {rank}" in printed
    assert printed.count("`save_on_each_node=True`") == 2
