# SPDX-License-Identifier: Apache-2.0

"""
vLLM of one kind, in the default precision: its greedy answers are those of the model by their likelihood, for both
sets of weights, and threads share it. Colocated with full weights or adapters, awake or asleep (level 2, and 1)
between sessions; or a server on the second GPU, with weights over NCCL, on a CPU through a folder. Needs vLLM and trl.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from common import LeftOut, main


def run(device: torch.device, small: bool, kind: str) -> dict:
    is_cuda = device.type == "cuda"
    if not is_cuda and device.type != "cpu":
        raise LeftOut("vLLM does not know this device")
    if not is_cuda and kind.endswith("asleep"):
        raise LeftOut("vLLM does not sleep on a CPU")
    if is_cuda and kind == "server" and torch.cuda.device_count() < 2:
        raise LeftOut("it needs two GPUs")
    from helpers import vllm_utils
    from peft import LoraConfig

    options = {"bf16": True, "learning_rate": 1e-2, "target_update_rate": 0.001}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if kind == "server":
            words, environment = None, None
            if is_cuda:
                words = ["--gpu-memory-utilization", "0.2", "--weight-transfer-config", '{"backend": "nccl"}']
                environment = {"CUDA_VISIBLE_DEVICES": "1"}
                port = vllm_utils.free_port()
                options |= {"use_cpu": False, "vllm_server_weights_dir": None, "vllm_group_port": port}
            server = vllm_utils.Server(folder / "log.txt", vllm_utils.free_port(), words, environment)
            server.start()
            stack.callback(server.kill)
            server.wait()
            trainer = vllm_utils.make_client(server, folder, options)
        else:
            lora = {"peft_config": LoraConfig(r=4, lora_alpha=64)} if kind.startswith("lora") else {}
            options |= {"use_cpu": not is_cuda, "vllm_enable_sleep_mode": kind.endswith("asleep"), "max_steps": 6}
            options |= {"vllm_gpu_memory_utilization": 0.2}
            options |= {"learning_rate": 5e-2} if lora else {}  # so that both sets of weights answer otherwise
            trainer = vllm_utils.make_vllm_trainer(folder, options, **lora)
        trainer.train()
        found = vllm_utils.compare_likelihoods(trainer)
        vllm_utils.assert_continuous(trainer, is_exact=False)
        found["seconds of a sync"] = max(vllm_utils.logged(trainer, "time/sync"))
        if kind != "server":
            found["prefix hits"] = vllm_utils.logged(trainer, "generation/prefix_hit_rate")[-1]
        return found


if __name__ == "__main__":
    main(run)
