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

"""The options of generation with vLLM, under TRL's names."""

from dataclasses import dataclass, field

from trl.trainer.base_config import _BaseConfig


@dataclass
class VLLMOptions(_BaseConfig):
    r"""
    Options of [`NLACConfig`] for generation with vLLM, as those of [`~trl.GRPOConfig`].

    Parameters:
        use_vllm (`bool`, *optional*, defaults to `False`):
            Whether to generate with vLLM in place of `model.generate`. Needs `pip install trl-nlac[vllm]`.
        vllm_mode (`str`, *optional*, defaults to `"colocate"`):
            `"colocate"`: vLLM lives in each process of the trainer and shares its device. `"server"`: each process asks
            a vLLM server that was started before.
        vllm_model_impl (`str`, *optional*, defaults to `"vllm"`):
            Whose implementation of the model vLLM uses, `"vllm"` or `"transformers"`.
        vllm_enable_sleep_mode (`bool`, *optional*, defaults to `False`):
            Whether a colocated engine lets its memory go while the model trains. Needs a GPU.
        vllm_structured_outputs_regex (`str`, *optional*):
            Regular expression that every action and refined action is made to match. What the critic says is free.

        > Parameters that control the vLLM server (only used when `vllm_mode` is `"server"`)

        vllm_server_base_url (`str`, *optional*):
            URL of the server, `"http://localhost:8000"` for example. If given, host and port are ignored.
        vllm_server_host (`str`, *optional*, defaults to `"0.0.0.0"`):
            Host of the server.
        vllm_server_port (`int`, *optional*, defaults to `8000`):
            Port of the server.
        vllm_server_timeout (`float`, *optional*, defaults to `240.0`):
            Seconds to wait for the server at the start, and for one that is silent or was lost later.
        vllm_group_port (`int`, *optional*, defaults to `51216`):
            Port on which the trainer and the server meet to exchange weights over NCCL.
        vllm_server_weights_dir (`str`, *optional*):
            Folder that trainer and server see under the same path, through which weights reach the server, in place of
            NCCL. Adapters (LoRA) always go this way.

        > Parameters that control colocated vLLM (only used when `vllm_mode` is `"colocate"`)

        vllm_gpu_memory_utilization (`float`, *optional*, defaults to `0.3`):
            Share of the device's memory that vLLM may take.
        vllm_max_model_length (`int`, *optional*):
            Longest sequence, prompt and completion. If `None`, that of the model.
        vllm_tensor_parallel_size (`int`, *optional*, defaults to `1`):
            Number of processes that share one engine.
    """

    use_vllm: bool = field(default=False, metadata={"help": "Whether to generate with vLLM."})
    vllm_mode: str = field(
        default="colocate",
        metadata={
            "help": "Where vLLM lives: in each process of the trainer, or in a server.",
            "choices": ["colocate", "server"],
        },
    )
    vllm_model_impl: str = field(
        default="vllm",
        metadata={"help": "Whose implementation of the model vLLM uses.", "choices": ["vllm", "transformers"]},
    )
    vllm_enable_sleep_mode: bool = field(
        default=False,
        metadata={"help": "Whether a colocated engine lets its memory go while the model trains. Needs a GPU."},
    )
    vllm_structured_outputs_regex: str | None = field(
        default=None, metadata={"help": "Regular expression that every action is made to match."}
    )
    vllm_server_base_url: str | None = field(
        default=None, metadata={"help": "URL of the vLLM server. If given, host and port are ignored."}
    )
    vllm_server_host: str = field(default="0.0.0.0", metadata={"help": "Host of the vLLM server."})
    vllm_server_port: int = field(default=8000, metadata={"help": "Port of the vLLM server."})
    vllm_server_timeout: float = field(
        default=240.0,
        metadata={"help": "Seconds to wait for the vLLM server at the start, and for one that is silent or was lost."},
    )
    vllm_group_port: int = field(
        default=51216, metadata={"help": "Port on which the trainer and the vLLM server meet to exchange weights."}
    )
    vllm_server_weights_dir: str | None = field(
        default=None,
        metadata={"help": "Folder that trainer and vLLM server share, through which weights go in place of NCCL."},
    )
    vllm_gpu_memory_utilization: float = field(
        default=0.3, metadata={"help": "Share of the device's memory that vLLM may take."}
    )
    vllm_max_model_length: int | None = field(
        default=None, metadata={"help": "Longest sequence of vLLM, prompt and completion. If None, that of the model."}
    )
    vllm_tensor_parallel_size: int = field(
        default=1, metadata={"help": "Number of processes that share one colocated engine."}
    )
