# SPDX-License-Identifier: Apache-2.0

"""
Colocated vLLM: greedy tokens against transformers for both sets of weights, seeds, adapters, and levels of sleep.
Needs vLLM and trl.
"""

import gc
import sys
import tempfile
from pathlib import Path

import torch
from common import LeftOut, main


sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]


def run(device: torch.device, small: bool) -> dict:
    if device.type not in ("cuda", "cpu"):
        raise LeftOut("vLLM does not know this device")
    from helpers.vllm_utils import assert_continuous, compare, logged, make_vllm_trainer
    from peft import LoraConfig

    found = {}
    kinds = {"full weights": (None, False), "adapters": (LoraConfig(r=4, lora_alpha=64), False)}
    if device.type == "cuda":  # sleep level 2, and 1
        kinds |= {f"{name}, asleep": (lora, True) for name, (lora, _) in kinds.items()}
    for name, (lora, sleeps) in kinds.items():
        if small and lora is not None:
            continue  # each engine takes a while on a CPU
        with tempfile.TemporaryDirectory() as folder:
            options = {
                "use_cpu": device.type == "cpu",
                "vllm_enable_sleep_mode": sleeps,
                "vllm_gpu_memory_utilization": 0.2,
            }
            trainer = make_vllm_trainer(Path(folder), options, **({} if lora is None else {"peft_config": lora}))
            trainer.train()
            compare(trainer)
            assert_continuous(trainer)
            found[f"{name}: seconds of a sync"] = max(logged(trainer, "time/sync"))
            found[f"{name}: prefix hits"] = logged(trainer, "generation/prefix_hit_rate")[-1]
            del trainer
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    main(run)
