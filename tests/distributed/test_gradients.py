# SPDX-License-Identifier: Apache-2.0

import pytest
from helpers.launch import launch_script


pytest.importorskip("deepspeed")


SCRIPT = """
import sys
from pathlib import Path

import torch
from helpers.testing_utils import make_trainer
from transformers import TrainerCallback
from trl_nlac import NLACTrainer


class Spoiled(NLACTrainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss * float("nan") if self.state.global_step == 1 and self.args.process_index == 1 else loss


class Watching(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        weights = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}  # of ZeRO-3 on one process
        seen.append({name: weight.clone() for name, weight in weights.items()})


for stage in (2, 3):
    zero = {"stage": stage}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    config = {"zero_optimization": zero, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}
    options = {"max_steps": 3, "max_turns": 1, "per_device_train_batch_size": 1, "deepspeed": config}
    trainer, seen = make_trainer(Path(sys.argv[1], str(stage)), options, Spoiled), []
    trainer.add_callback(Watching())
    trainer.train()
    first, second, third = seen
    assert all(weight.equal(first[name]) for name, weight in second.items()), "the step was taken"
    assert not third or any(not weight.equal(second[name]) for name, weight in third.items())
    assert all(weight.isfinite().all() for weight in third.values())
    assert trainer.gradient_guard.num_skipped == 1
    print(f"zero{stage} {trainer.args.process_index} done\\n", end="", flush=True)
torch.distributed.destroy_process_group()
"""


def test_a_step_with_a_gradient_that_is_not_finite_is_left_out_by_deepspeed(tmp_path):
    """Not finite on one process alone; under ZeRO-3 each would wait for the other otherwise."""
    printed = launch_script(tmp_path, SCRIPT, str(tmp_path))
    assert all(f"zero{stage} {rank} done" in printed for stage in (2, 3) for rank in (0, 1))
