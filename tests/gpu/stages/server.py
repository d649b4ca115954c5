# SPDX-License-Identifier: Apache-2.0

"""
A vLLM server on the second GPU, with weights over NCCL: its greedy answers are those of the model by their likelihood.
On a CPU the weights go through a folder. Needs vLLM, trl and two GPUs.
"""

import sys
import tempfile
from pathlib import Path

import torch
from common import LeftOut, main


sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]


def run(device: torch.device, small: bool) -> dict:
    if device.type not in ("cuda", "cpu"):
        raise LeftOut("vLLM does not know this device")
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        raise LeftOut("it needs two GPUs")
    from helpers.vllm_utils import Server, assert_continuous, compare_likelihoods, free_port, logged, make_client

    with tempfile.TemporaryDirectory() as name:
        folder, config = Path(name), {"bf16": True, "learning_rate": 1e-2, "target_update_rate": 0.001}
        options, environment = None, None
        if device.type == "cuda":
            options = ["--gpu-memory-utilization", "0.2", "--weight-transfer-config", '{"backend": "nccl"}']
            environment = {"CUDA_VISIBLE_DEVICES": "1"}
            config |= {"use_cpu": False, "vllm_server_weights_dir": None, "vllm_group_port": free_port()}
        server = Server(folder / "log.txt", free_port(), options, environment)
        try:
            server.start()
            server.wait()
            trainer = make_client(server, folder, config)
            trainer.train()
            found = compare_likelihoods(trainer)
            assert_continuous(trainer, is_exact=False)
            return {**found, "seconds of a sync": max(logged(trainer, "time/sync"))}
        finally:
            server.kill()


if __name__ == "__main__":
    main(run)
