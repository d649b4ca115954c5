# SPDX-License-Identifier: Apache-2.0

"""This process's shard of each parameter, for every kind of sharding."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from accelerate.utils import DeepSpeedPlugin, extract_model_from_parallel, patch_environment
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from transformers.integrations import deepspeed as hf_deepspeed

from .private_names import compute_local_shape_and_global_offset


def is_zero3(plugin: DeepSpeedPlugin | None) -> bool:
    """Whether DeepSpeed, if it is used, shards the weights."""
    return plugin is not None and plugin.zero_stage == 3


@contextmanager
def loaded_whole() -> Iterator[None]:
    """Load the whole of a model on every process, in a run that shards its own as it is loaded (ZeRO-3, FSDP)."""
    live = hf_deepspeed._hf_deepspeed_config_weak_ref
    hf_deepspeed.unset_hf_deepspeed_config()
    try:
        with patch_environment(fsdp_cpu_ram_efficient_loading="false"):
            yield
    finally:
        hf_deepspeed._hf_deepspeed_config_weak_ref = live


class Place(NamedTuple):
    """The values of a parameter that a process holds: a range of the flattened parameter."""

    shape: torch.Size  # of the whole parameter
    start: int
    size: int
    is_counted: bool  # if several processes hold the same range, one of them counts it
    is_shard: bool = True


class LocalShard:
    """The values of a parameter that this process holds: here all of them, as nothing is sharded."""

    def __init__(self, parameter: nn.Parameter):
        is_counted = not dist.is_initialized() or dist.get_rank() == 0
        self.place = Place(parameter.shape, 0, parameter.numel(), is_counted, is_shard=False)
        self.live = parameter.data  # this process's part of the values that the model computes with

    @property
    def master(self) -> torch.Tensor:
        """The values that the optimizer updates: in float32 if it keeps a copy in float32."""
        return self.live

    def write(self, values: torch.Tensor) -> None:
        """Make the model compute with other values."""
        self.live.copy_(values)


class Zero2Shard(LocalShard):
    """Under ZeRO-1 and ZeRO-2, parameters are whole; their float32 masters are sharded."""

    def __init__(self, parameter: nn.Parameter):
        self.parameter = parameter
        self.live = parameter.data
        self.fragment = parameter._hp_mapping  # None: this process updates nothing of the parameter
        start, size = 0, 0
        if self.fragment is not None:
            start, size = self.fragment.lp_fragment_address.start, self.fragment.lp_fragment_address.numel
        self.place = Place(parameter.shape, start, size, is_counted=True)

    @property
    def master(self) -> torch.Tensor:
        return self.live.new_empty(0) if self.fragment is None else self.fragment.hp_fragment.data

    def write(self, values: torch.Tensor) -> None:
        self.live.zero_()
        self.live.view(-1)[self.place.start : self.place.start + self.place.size].copy_(values)
        dist.all_reduce(self.live, group=self.parameter._dp_group)


class Zero3Shard(LocalShard):
    """Under ZeRO-3, `ds_tensor` is a slice of the flattened parameter, with padding at the end of the last ones."""

    def __init__(self, parameter: nn.Parameter):
        self.parameter = parameter
        slice_size = parameter.partition_numel()
        start = min(slice_size * dist.get_rank(parameter.ds_process_group), parameter.ds_numel)
        size = min(slice_size, parameter.ds_numel - start)
        self.place = Place(parameter.ds_shape, start, size, is_counted=True)
        self.live = parameter.ds_tensor.data[:size]

    @property
    def master(self) -> torch.Tensor:
        # `safe_get_local_fp32_param` would copy it to the GPU where the optimizer's states are in CPU memory.
        values, _ = self.parameter._z3_optimizer._get_fp32_opt_state_partition(
            self.parameter, release_swap_buffers=True
        )
        return values.data[: self.place.size]


class FSDP2Shard(LocalShard):
    """Under FSDP2, a parameter is a `DTensor`; each process holds some rows, and its optimizer updates these."""

    def __init__(self, parameter: nn.Parameter):
        mesh, placements = parameter.device_mesh, parameter.placements
        if any(not placement.is_replicate() and placement != Shard(0) for placement in placements):
            raise NotImplementedError(
                f"Target weights support only parameters that FSDP2 shards by rows, got the placements {placements}. "
                "Use neither tensor parallelism nor a `shard_placement_fn`."
            )
        self.live = parameter.data.to_local()
        _, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
        coordinates = zip(mesh.get_coordinate(), placements, strict=True)
        is_counted = all(i == 0 for i, placement in coordinates if placement.is_replicate())
        start = offset[0] * parameter.shape[1:].numel()
        self.place = Place(parameter.shape, start, self.live.numel(), is_counted=is_counted)


def local_shards(model: nn.Module) -> dict[str, LocalShard]:
    """Return this process's shard of each trainable parameter, by its name in the unwrapped model."""
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    _reshard(model)  # FSDP2 shows gathered parameters as whole ones
    return {name: _local_shard(p) for name, p in model.named_parameters() if p.requires_grad}


def _local_shard(parameter: nn.Parameter) -> LocalShard:
    if isinstance(parameter, DTensor):
        return FSDP2Shard(parameter)
    if hasattr(parameter, "ds_tensor"):  # DeepSpeed's attributes show which stage it is
        return Zero3Shard(parameter)
    if hasattr(parameter, "_hp_mapping"):
        return Zero2Shard(parameter)
    return LocalShard(parameter)


def has_finite_weights(model: nn.Module) -> bool:
    """Return whether this process's values of all trainable parameters are finite."""
    found = [shard.live.isfinite().all() for shard in local_shards(model).values()]
    return bool(torch.stack(found).all()) if found else True


def has_gathered_weights(model: nn.Module) -> bool:
    """Return whether weights are there only while their module is called: under ZeRO-3 and FSDP2."""
    return any(isinstance(p, DTensor) or hasattr(p, "ds_tensor") for p in model.parameters())


@contextmanager
def kept_gathered(model: nn.Module, reshards: bool, dtype: torch.dtype | None) -> Iterator[None]:
    """
    Gather the weights that FSDP2 shards once, in `dtype` or that of the shards, for all passes within this context,
    which each process can then make alone. All processes must enter together. `reshards` says that FSDP2 otherwise
    drops the weights of a module after its forward pass. Raise a `RuntimeError` if the device has no room for all
    weights.
    """
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    _check_room(model, dtype)
    try:
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(reshards, recurse=False)
            module.reshard()


def gathered_bytes(model: nn.Module, dtype: torch.dtype | None) -> int:
    """Count the bytes of the weights that FSDP2 shards, once they are gathered in `dtype` or that of the shards."""
    sharded = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    return sum(parameter.numel() * (dtype or parameter.dtype).itemsize for parameter in sharded)


def _check_room(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Raise a `RuntimeError` if the device has no room for all weights of a model."""
    device = next((parameter.device for parameter in model.parameters() if isinstance(parameter, DTensor)), None)
    if device is None or device.type != "cuda":
        return
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    needed, free = gathered_bytes(model, dtype), torch.cuda.mem_get_info(device)[0] + unused
    if needed > free:
        raise RuntimeError(
            "Under FSDP2 every process gathers the whole model to generate with transformers, or to compute verdict "
            f"scores. That takes up to {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of {device} are free. Train on "
            "more GPUs, generate with vLLM (`use_vllm=True`), or, on one node, gather each layer for every token "
            "(`ds3_gather_for_generation=False`), which is slow."
        )


def forget_gathered(model: nn.Module) -> None:
    """Drop gathered parameters that were kept, so that the next forward pass gathers the live values."""
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    _reshard(model)
    for parameter in model.parameters():
        if hasattr(parameter, "ds_tensor"):
            # Small parameters that ZeRO-3 keeps gathered, those being gathered, and the copies of ZeRO++.
            parameter._z3_optimizer.empty_partition_cache()
            parameter._z3_optimizer.invalidate_secondary_tensor()
            break
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()  # the streams that gather do not wait for the one that writes


def _reshard(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def uncounted_passes(model: nn.Module) -> Iterator[None]:
    """
    Keep DeepSpeed from counting forward passes through gathered weights of ZeRO-3 as its steps, which it compares with
    those of the other processes: they make other numbers of passes, or none, and each would wait for the other. TRL
    removes the other hooks. Do nothing before DeepSpeed has wrapped the model.
    """
    from deepspeed import DeepSpeedEngine

    from .private_names import DeepSpeedZeRoOffload

    if not isinstance(model, DeepSpeedEngine):
        yield
        return
    optimizer = model.optimizer
    offload = optimizer if isinstance(optimizer, DeepSpeedZeRoOffload) else optimizer.parameter_offload
    hooks, number = offload.module._forward_pre_hooks, offload.fwd_pre_hook.id
    hook = hooks.pop(number)
    try:
        yield
    finally:
        hooks[number] = hook
