# SPDX-License-Identifier: Apache-2.0

"""What generates: transformers or vLLM, under TRL's names."""

import os
from dataclasses import dataclass, field

from .checks import MAX_SECONDS, check, check_at_least, check_between, check_choices, check_positive, check_types


# GiB on each device, at most, of the keys and values that transformers keeps while weights stay the same.
PREFIX_CACHE_MEMORY = 4.0


@dataclass
class GenerationOptions:
    r"""
    Options of [`NLACConfig`] for generation. Those of vLLM are the options of [`~trl.GRPOConfig`].

    Parameters:
        max_generation_batch_size (`int`, *optional*, defaults to `128`):
            Largest number of sequences that one device generates in one call.
        ds3_gather_for_generation (`bool`, *optional*, defaults to `True`):
            Under DeepSpeed ZeRO-3 and FSDP2, whether each process gathers the whole model to generate with
            transformers. If not, every layer is gathered for every token, which is slow and needs little memory. On
            several nodes that is refused.
        use_vllm (`bool`, *optional*, defaults to `False`):
            Whether to generate with vLLM instead of `model.generate`. Needs `pip install trl-nlac[vllm]`.
        vllm_mode (`str`, *optional*, defaults to `"colocate"`):
            `"colocate"`: vLLM runs in each process of the trainer and shares its device. `"server"`: each process uses
            a vLLM server that was started before.
        vllm_model_impl (`str`, *optional*, defaults to `"vllm"`):
            The model implementation that vLLM uses, `"vllm"` or `"transformers"`.
        vllm_enable_sleep_mode (`bool`, *optional*, defaults to `False`):
            Whether a colocated engine releases its memory while the model trains. Needs a GPU.
        vllm_structured_outputs_regex (`str`, *optional*):
            Regular expression that every action and refined action must match. Critiques are free.

        > Parameters that control the vLLM server (only used when `vllm_mode` is `"server"`)

        vllm_server_base_url (`str`, *optional*):
            URL of the server, for example `"http://localhost:8000"`. If given, host and port are ignored.
        vllm_server_host (`str`, *optional*, defaults to `"0.0.0.0"`):
            Host of the server.
        vllm_server_port (`int`, *optional*, defaults to `8000`):
            Port of the server.
        vllm_server_timeout (`float`, *optional*, defaults to `240.0`):
            Seconds to wait for the server at the start, and later for one that is silent or was lost.
        vllm_group_port (`int`, *optional*, defaults to `51216`):
            Port on which the trainer and the server meet to exchange weights over NCCL.
        vllm_server_weights_dir (`str`, *optional*):
            Folder that trainer and server see under the same path. Weights reach the server through it rather than
            over NCCL. Adapters (LoRA) always do.

        > Parameters that control colocated vLLM (only used when `vllm_mode` is `"colocate"`)

        vllm_gpu_memory_utilization (`float`, *optional*, defaults to `0.3`):
            Share of the device's memory that vLLM can use.
        vllm_max_model_length (`int`, *optional*):
            Longest sequence, prompt and completion. If `None`, the model's.
        vllm_tensor_parallel_size (`int`, *optional*, defaults to `1`):
            Number of processes that share one engine.

    Raises:
        ValueError: If a value is out of range; the message names the option.
    """

    max_generation_batch_size: int = field(
        default=128, metadata={"help": "Largest number of sequences that one device generates in one call."}
    )
    ds3_gather_for_generation: bool = field(
        default=True,
        metadata={
            "help": "Under ZeRO-3 and FSDP2, whether each process gathers the whole model to generate with "
            "transformers."
        },
    )
    use_vllm: bool = field(default=False, metadata={"help": "Whether to generate with vLLM."})
    vllm_mode: str = field(
        default="colocate",
        metadata={
            "help": "Where vLLM runs: in each process of the trainer, or in a server.",
            "choices": ["colocate", "server"],
        },
    )
    vllm_model_impl: str = field(
        default="vllm",
        metadata={"help": "The model implementation that vLLM uses.", "choices": ["vllm", "transformers"]},
    )
    vllm_enable_sleep_mode: bool = field(
        default=False,
        metadata={"help": "Whether a colocated engine releases its memory while the model trains. Needs a GPU."},
    )
    vllm_structured_outputs_regex: str | None = field(
        default=None, metadata={"help": "Regular expression that every action must match."}
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
        metadata={"help": "Folder that trainer and vLLM server share, for weights that do not go over NCCL."},
    )
    vllm_gpu_memory_utilization: float = field(
        default=0.3, metadata={"help": "Share of the device's memory that vLLM can use."}
    )
    vllm_max_model_length: int | None = field(
        default=None, metadata={"help": "Longest sequence of vLLM, prompt and completion. If None, the model's."}
    )
    vllm_tensor_parallel_size: int = field(
        default=1, metadata={"help": "Number of processes that share one colocated engine."}
    )

    def __post_init__(self):
        check_types(self)
        check_choices(self, "vllm_mode", "vllm_model_impl")
        check_at_least(self, 1, "max_generation_batch_size", "vllm_tensor_parallel_size", "vllm_max_model_length")
        check_between(self, 1, 65_535, "vllm_server_port", "vllm_group_port")
        check_positive(self, "vllm_server_timeout", most=MAX_SECONDS)
        check(self, "vllm_gpu_memory_utilization", 0 < self.vllm_gpu_memory_utilization <= 1, "above 0 and at most 1")
        if self.vllm_server_weights_dir is not None:
            self.vllm_server_weights_dir = os.path.abspath(self.vllm_server_weights_dir)  # the server is elsewhere
        if not self.use_vllm:
            regex = self.vllm_structured_outputs_regex
            check(self, "vllm_structured_outputs_regex", regex is None, "None without `use_vllm=True`")
