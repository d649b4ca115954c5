# SPDX-License-Identifier: Apache-2.0

"""
Compare the target and initial weights of a small model that two processes train, sharded in each way, with averages of
the whole weights, which DeepSpeed and PyTorch gather with their own functions.

torchrun --nproc_per_node 2 target_weights_of_shards.py OUTPUT_DIR
"""

import contextlib
import sys
from pathlib import Path

import deepspeed
import pytest
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from trl_nlac.generation.engine import fingerprint
from trl_nlac.method.target_weights import InitialWeights, KeptWeights, TargetWeights
from trl_nlac.training.checkpoint import _load_weights, _save_weights


UPDATE_RATE = 0.1
FILE, INITIAL_FILE = "target_weights.safetensors", "initial_weights.safetensors"


def make_model() -> nn.Module:
    """Make a model with odd sizes, which two processes cannot share equally; the last layer is frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 33), nn.Tanh(), nn.Linear(33, 3))
    model[4].requires_grad_(False)
    return model


def deepspeed_engine(stage: int, persistence_threshold: int = 0):
    zero = {"stage": stage, "stage3_param_persistence_threshold": persistence_threshold}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    model = make_model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(trained, lr=1e-3))

    def step(loss):
        engine.backward(loss)
        engine.step()

    return engine, step, safe_get_full_fp32_param


def fsdp2_model(mesh_shape: tuple[int, ...]):
    model = make_model()
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("replicate", "shard")[-len(mesh_shape) :])
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step, lambda parameter: parameter.full_tensor()


def whole_weights(model: nn.Module, whole) -> dict[str, torch.Tensor]:
    if isinstance(model, FSDPModule):
        model.reshard()  # after a forward pass, the outermost module has whole parameters
    model = model.module if isinstance(model, deepspeed.DeepSpeedEngine) else model
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {name: whole(p).detach().float().clone() for name, p in parameters.items()}


def with_weights(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> nn.Module:
    model = make_model()
    model.load_state_dict(weights, strict=False)
    return model.to(dtype)


def check(directory: Path, model: nn.Module, step, whole) -> None:
    dtype = next(model.parameters()).dtype
    rank = dist.get_rank()
    target, initial = TargetWeights(model, UPDATE_RATE), InitialWeights(model)
    average = before = whole_weights(model, whole)
    torch.manual_seed(rank)
    inputs = torch.randn(4, 7, dtype=dtype)
    for _ in range(3):
        step(model(inputs).float().square().mean())
        target.update(model)
        weights = whole_weights(model, whole)
        average = {name: average[name].lerp(weights[name], UPDATE_RATE) for name in average}

    # Swapped in and out, with weights gathered before, and after an exception on only one process.
    with torch.no_grad():
        own = model(inputs)
        assert torch.equal(own, with_weights(weights, dtype)(inputs))
        prints = [fingerprint(model)]
        with target.swapped_into(model):
            swapped = model(inputs)
            prints.append(fingerprint(model))
        assert prints[0] != prints[1] and prints[0] == fingerprint(model)  # so that vLLM gets the weights again
        assert torch.equal(swapped, with_weights(average, dtype)(inputs))
        assert not torch.equal(swapped, own)
        assert torch.equal(model(inputs), own)
        with initial.swapped_into(model):
            assert torch.equal(model(inputs), with_weights(before, dtype)(inputs))
        assert torch.equal(model(inputs), own)
        with contextlib.suppress(InterruptedError), target.swapped_into(model):
            model(inputs)
            if rank == 0:
                raise InterruptedError
        assert torch.equal(model(inputs), own)
    after = whole_weights(model, whole)
    assert all(torch.equal(after[name], weights[name]) for name in weights)

    # The same average and distance as with one process.
    one_process = with_weights(weights, torch.float32)
    same = TargetWeights(one_process)
    assert target.distance(model) != 0
    (directory / "nlac" / f"rank_{rank:05d}").mkdir(parents=True)
    _save_weights(directory, rank, target, FILE, writes_whole=rank == 0)
    _save_weights(directory, rank, initial, INITIAL_FILE, writes_whole=rank == 0)
    dist.barrier()
    _load_weights(directory, same, FILE)
    torch.testing.assert_close(same.state_dict(), average, rtol=0, atol=1e-7)
    assert target.distance(model) == pytest.approx(same.distance(one_process), rel=1e-6)

    same_initial = InitialWeights(with_weights(weights, dtype))
    _load_weights(directory, same_initial, INITIAL_FILE)
    for name, values in same_initial.state_dict().items():
        assert values.dtype == dtype and torch.equal(values, before[name].to(dtype)), name

    # Each value is on one process, and each process has about half of them.
    sizes = [None, None]
    dist.all_gather_object(sizes, sum(place.size for place in target.places.values() if place.is_counted))
    num_values = sum(values.numel() for values in average.values())
    assert sum(sizes) == num_values and (0 in sizes or max(sizes) < 0.6 * num_values), sizes

    # From one process to shards.
    if rank == 0:
        (directory / "one_process").mkdir()
        _save_weights(directory / "one_process", 0, same, FILE, writes_whole=True)
        _save_weights(directory / "one_process", 0, same_initial, INITIAL_FILE, writes_whole=True)
    dist.barrier()
    kept: list[tuple[KeptWeights, str]] = [(target, FILE), (initial, INITIAL_FILE)]
    for of_process, file in kept:
        shards = {name: values.clone() for name, values in of_process.state_dict().items()}
        of_process.load_state_dict({name: torch.zeros_like(values) for name, values in shards.items()})
        _load_weights(directory / "one_process", of_process, file)
        torch.testing.assert_close(of_process.state_dict(), shards, rtol=0, atol=0)


output_dir = Path(sys.argv[1])
deepspeed.init_distributed("gloo")
check(output_dir / "zero1", *deepspeed_engine(1))
check(output_dir / "zero2", *deepspeed_engine(2))
check(output_dir / "zero3", *deepspeed_engine(3))
check(output_dir / "zero3_kept_whole", *deepspeed_engine(3, persistence_threshold=100))
check(output_dir / "fsdp2", *fsdp2_model((2,)))
check(output_dir / "replicated", *fsdp2_model((2, 1)))
dist.destroy_process_group()  # else a process that ends first can abort the other, or itself
