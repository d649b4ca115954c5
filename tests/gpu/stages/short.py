# SPDX-License-Identifier: Apache-2.0

"""
A few iterations of the trainer in the default precision (bf16) with gradient checkpointing: losses are finite, and
target weights go in and out. Full weights, `lora`, or as `accelerate launch` shards them. Needs trl and datasets.
"""

import tempfile
import time

import torch
from common import LeftOut, main


def run(device: torch.device, small: bool, kind: str) -> dict:
    if kind in ("zero3", "fsdp2") and device.type != "cuda":
        raise LeftOut("on other devices than GPUs `accelerate launch` shards nothing")
    from helpers.testing_utils import make_trainer

    from trl_nlac.generation.engine import fingerprint

    lora = {}
    if kind == "lora":
        from peft import LoraConfig

        lora = {"peft_config": LoraConfig(r=8, target_modules="all-linear")}
    with tempfile.TemporaryDirectory() as folder:
        config = {
            **dict(use_cpu=device.type == "cpu", bf16=True, gradient_checkpointing=True, target_update_rate=0.1),
            **dict(max_steps=2 if small else 6, logging_steps=1, max_turns=2, max_completion_length=48),
            **dict(per_device_train_batch_size=8, episodes_per_iteration=8),
        }
        trainer = make_trainer(folder, config, **lora)
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
        model = trainer.model_wrapped
        own = fingerprint(model)
        with trainer.target_weights.swapped_into(model):
            assert fingerprint(model) != own, "target weights are the model's own"
        assert fingerprint(model) == own, "target weights stayed in the model"
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert len(losses) == trainer.args.max_steps and all(0 < loss < 1e4 for loss in losses), losses
        assert trainer.accelerator.mixed_precision == "bf16"
        return {
            "seconds of training": seconds,
            "last loss": losses[-1],
            "sharded by": str(trainer.accelerator.distributed_type),
            "trees": trainer._collate.shares_prefixes,
        }


if __name__ == "__main__":
    main(run)
