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
            `"colocate"`: vLLM lives in each process of the trainer and shares its device. Others are not supported yet.
        vllm_model_impl (`str`, *optional*, defaults to `"vllm"`):
            Whose implementation of the model vLLM uses, `"vllm"` or `"transformers"`.
        vllm_gpu_memory_utilization (`float`, *optional*, defaults to `0.3`):
            Share of the device's memory that vLLM may take.
        vllm_max_model_length (`int`, *optional*):
            Longest sequence, prompt and completion. If `None`, that of the model.
    """

    use_vllm: bool = field(default=False, metadata={"help": "Whether to generate with vLLM."})
    vllm_mode: str = field(
        default="colocate",
        metadata={"help": "Where vLLM lives: in each process of the trainer.", "choices": ["colocate"]},
    )
    vllm_model_impl: str = field(
        default="vllm",
        metadata={"help": "Whose implementation of the model vLLM uses.", "choices": ["vllm", "transformers"]},
    )
    vllm_gpu_memory_utilization: float = field(
        default=0.3, metadata={"help": "Share of the device's memory that vLLM may take."}
    )
    vllm_max_model_length: int | None = field(
        default=None, metadata={"help": "Longest sequence of vLLM, prompt and completion. If None, that of the model."}
    )
