# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
A vLLM server on the second GPU, with weights over NCCL: greedy tokens against transformers for both sets of weights.
Needs vLLM, trl and two GPUs.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import torch
from common import TINY, main


sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]


def run(device: torch.device, small: bool) -> dict:
    assert torch.cuda.device_count() > 1, "this stage needs two GPUs"
    from helpers.vllm_utils import MAX_MODEL_LENGTH, assert_continuous, compare, free_port, logged, make_vllm_trainer

    port, group_port = free_port(), free_port()
    command = ["vllm", "serve", TINY, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", str(MAX_MODEL_LENGTH), "--gpu-memory-utilization", "0.2"]
    command += ["--weight-transfer-config", '{"backend": "nccl"}']
    own = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "CUDA_VISIBLE_DEVICES": "1"}
    server = subprocess.Popen(command, env=own, start_new_session=True, stdout=sys.stderr)
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, "the server does not start"
                time.sleep(1)
        with tempfile.TemporaryDirectory() as folder:
            options = {"use_cpu": False, "vllm_mode": "server", "vllm_group_port": group_port}
            options["vllm_server_base_url"] = f"http://127.0.0.1:{port}"
            trainer = make_vllm_trainer(Path(folder), options)
            trainer.train()
            compare(trainer)
            assert_continuous(trainer)
            return {"seconds of a sync": max(logged(trainer, "time/sync"))}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


if __name__ == "__main__":
    main(run)
