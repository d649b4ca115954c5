# SPDX-License-Identifier: Apache-2.0

"""
Colocated vLLM of one kind, in the default precision: its greedy answers are those of the model by their likelihood,
for both sets of weights, and threads share it. Full weights or adapters, awake or asleep (level 2, and 1) between
sessions. Needs vLLM and trl.
"""

import sys
import tempfile
from pathlib import Path

import torch
from common import LeftOut, main


sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]


def run(device: torch.device, small: bool, kind: str) -> dict:
    if device.type not in ("cuda", "cpu"):
        raise LeftOut("vLLM does not know this device")
    if device.type == "cpu" and kind.endswith("asleep"):
        raise LeftOut("vLLM does not sleep on a CPU")
    from helpers.vllm_utils import assert_continuous, compare_likelihoods, logged, make_vllm_trainer
    from peft import LoraConfig

    lora = {"peft_config": LoraConfig(r=4, lora_alpha=64)} if kind.startswith("lora") else {}
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "use_cpu": device.type == "cpu",
            "bf16": True,
            "vllm_enable_sleep_mode": kind.endswith("asleep"),
            "vllm_gpu_memory_utilization": 0.2,
            "max_steps": 6,
            "learning_rate": 5e-2 if lora else 1e-2,  # so that both sets of weights answer otherwise
            "target_update_rate": 0.001,
        }
        trainer = make_vllm_trainer(Path(folder), options, **lora)
        trainer.train()
        found = compare_likelihoods(trainer)
        assert_continuous(trainer, is_exact=False)
        found["seconds of a sync"] = max(logged(trainer, "time/sync"))
        found["prefix hits"] = logged(trainer, "generation/prefix_hit_rate")[-1]
        return found


if __name__ == "__main__":
    main(run)
