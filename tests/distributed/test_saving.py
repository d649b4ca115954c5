# SPDX-License-Identifier: Apache-2.0

"""What several processes save, and what comes back of a save that was interrupted."""

from helpers.launch import launch_script

from trl_nlac.training.saving import recover


def test_a_checkpoint_that_was_being_replaced_comes_back(tmp_path):
    replaced = tmp_path / "_incomplete" / "replaced-checkpoint-3"
    replaced.mkdir(parents=True)
    (replaced / "trainer_state.json").write_text("{}")
    (tmp_path / "_incomplete" / "checkpoint-3").mkdir()
    recover(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    assert (tmp_path / "checkpoint-3" / "trainer_state.json").exists()


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
