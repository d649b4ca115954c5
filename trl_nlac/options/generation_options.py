# SPDX-License-Identifier: Apache-2.0

"""What generates: transformers or vLLM, under TRL's names."""

import os
from dataclasses import dataclass, field

from .checks import MAX_SECONDS, check, check_at_least, check_between, check_choices, check_types
from .documented import documented


# GiB on each device, at most, of the keys and values that transformers keeps while weights stay the same.
PREFIX_CACHE_MEMORY = 4.0


@documented
@dataclass
class GenerationOptions:
    r"""
    Options of [`NLACConfig`] for generation. Those of vLLM are the options of [`~trl.GRPOConfig`].

    Parameters:
        > Parameters that control generation

        max_generation_batch_size (`int`, *optional*, defaults to `64`):
            Largest number of sequences that one device generates in one call.
        ds3_gather_for_generation (`bool`, *optional*, defaults to `True`):
            Under DeepSpeed ZeRO-3 and FSDP2, whether each process gathers the whole model to generate with
            transformers. If not, every layer is gathered for every token, which is slow and needs little memory. On
            several nodes that is refused.
        use_vllm (`bool`, *optional*, defaults to `False`):
            Whether to generate with vLLM instead of `model.generate`. Needs `pip install trl-nlac[vllm]`.
        vllm_mode (`str`, *optional*, defaults to `"colocate"`):
            Where vLLM runs: in each process of the trainer, whose device it shares (`"colocate"`), or in a server that
            was started before (`"server"`).
        vllm_model_impl (`str`, *optional*, defaults to `"vllm"`):
            The model implementation that vLLM uses, `"vllm"` or `"transformers"`.
        vllm_enable_sleep_mode (`bool`, *optional*, defaults to `False`):
            Whether a colocated engine releases its memory while the model trains. Needs a GPU.
        vllm_structured_outputs_regex (`str`, *optional*):
            Regular expression that every action and refined action must match. Critiques are free.

        > Parameters that control the vLLM server (only used when `vllm_mode` is `"server"`)

        vllm_server_base_url (`str`, *optional*):
            URL of the vLLM server, for example `"http://localhost:8000"`. If given, host and port are ignored.
        vllm_server_host (`str`, *optional*, defaults to `"0.0.0.0"`):
            Host of the vLLM server.
        vllm_server_port (`int`, *optional*, defaults to `8000`):
            Port of the vLLM server.
        vllm_server_timeout (`float`, *optional*, defaults to `240.0`):
            Seconds to wait for the vLLM server at the start, and later for one that is silent or was lost.
        vllm_group_port (`int`, *optional*, defaults to `51216`):
            Port on which the trainer and the vLLM server meet to exchange weights over NCCL.
        vllm_server_weights_dir (`str`, *optional*):
            Folder that trainer and vLLM server see under the same path. Weights reach the server through it rather
            than over NCCL. Adapters (LoRA) always do.

        > Parameters that control colocated vLLM (only used when `vllm_mode` is `"colocate"`)

        vllm_gpu_memory_utilization (`float`, *optional*, defaults to `0.3`):
            Share of the device's memory that vLLM can use.
        vllm_max_model_length (`int`, *optional*):
            Longest sequence of vLLM, prompt and completion. If `None`, the model's.
        vllm_tensor_parallel_size (`int`, *optional*, defaults to `1`):
            Number of processes that share one colocated engine.

    Raises:
        ValueError: If a value is out of range; the message names the option.
    """

    max_generation_batch_size: int = 64
    ds3_gather_for_generation: bool = True
    use_vllm: bool = False
    vllm_mode: str = field(default="colocate", metadata={"choices": ["colocate", "server"]})
    vllm_model_impl: str = field(default="vllm", metadata={"choices": ["vllm", "transformers"]})
    vllm_enable_sleep_mode: bool = False
    vllm_structured_outputs_regex: str | None = None
    vllm_server_base_url: str | None = None
    vllm_server_host: str = "0.0.0.0"
    vllm_server_port: int = 8000
    vllm_server_timeout: float = 240.0
    vllm_group_port: int = 51216
    vllm_server_weights_dir: str | None = None
    vllm_gpu_memory_utilization: float = 0.3
    vllm_max_model_length: int | None = None
    vllm_tensor_parallel_size: int = 1

    def __post_init__(self):
        check_types(self)
        check_choices(self, "vllm_mode", "vllm_model_impl")
        check_at_least(self, 1, "max_generation_batch_size", "vllm_tensor_parallel_size", "vllm_max_model_length")
        check_between(self, 1, 65_535, "vllm_server_port", "vllm_group_port")
        is_valid = 0 < self.vllm_server_timeout <= MAX_SECONDS
        check(self, "vllm_server_timeout", is_valid, f"above 0 and at most {MAX_SECONDS:,}")
        check(self, "vllm_gpu_memory_utilization", 0 < self.vllm_gpu_memory_utilization <= 1, "above 0 and at most 1")
        if self.vllm_server_weights_dir is not None:
            self.vllm_server_weights_dir = os.path.abspath(self.vllm_server_weights_dir)  # the server is elsewhere
        if not self.use_vllm:
            regex = self.vllm_structured_outputs_regex
            check(self, "vllm_structured_outputs_regex", regex is None, "None without `use_vllm=True`")
