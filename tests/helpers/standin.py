# SPDX-License-Identifier: Apache-2.0

"""Two devices that compute with the CPU. Import it in processes of their own: they cannot be taken away again."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


NAME = "standin"
NUM_DEVICES = 2

aten = torch.ops.aten
# The host needs a value, or the size of a result.
_SYNCHRONISING = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
}
_READS_AT = {aten.index.Tensor, aten._unsafe_index.Tensor}
_WRITES_AT = {
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index_put.default,
}
# Refused with `torch.use_deterministic_algorithms(True)`; sums of whole numbers are not.
_NOT_DETERMINISTIC = {aten.cumsum.default, aten.cumsum_.default, aten.histc.default, aten.median.dim}
# CUDA takes one number from the CPU where it computes element by element, and as the value of these.
_TAKES_NUMBERS = {aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.fill.Tensor, aten.fill_.Tensor}


class Traffic:
    """What passed between host and devices."""

    def __init__(self):
        self.syncs: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()


_watched: list[Traffic] = []


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count what passes between host and devices within this context."""
    counted = Traffic()
    _watched.append(counted)
    try:
        yield counted
    finally:
        _watched.remove(counted)


def _count(kind: str) -> None:
    for counted in _watched:
        vars(counted)[kind][_line_of_the_package()] += 1


def _line_of_the_package() -> str:
    """Find the innermost line of `trl_nlac` that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        parts = Path(frame.f_code.co_filename).parts
        if "trl_nlac" in parts and "helpers" not in parts:
            return f"{'/'.join(parts[parts.index('trl_nlac') + 1 :])}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


class DeviceTensor(torch.Tensor):
    """A tensor that says that it is on a stand-in device. Its values are in a CPU tensor, `held`."""

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=device,
        )

    def __init__(self, held: torch.Tensor, device: torch.device):
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        _count("syncs")
        return self.held.tolist()

    def new_tensor(self, data: Any, *, dtype=None, device=None, requires_grad: bool = False) -> torch.Tensor:
        # PyTorch's own asks the backend which device is the current one, and a backend in Python cannot be told.
        device, dtype = device or self.device, dtype or self.dtype
        return torch.tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)

    def numpy(self, *, force: bool = False):
        raise TypeError(f"can't convert {self.device} tensor to numpy. Use Tensor.cpu() to copy it to host memory.")

    __array__ = numpy

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()  # says which tensors share memory

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __repr__(self, **kwargs) -> str:
        return f"DeviceTensor({self.held}, device='{self.device}')"

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeviceTensor":
        copied = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)

    def __reduce_ex__(self, protocol: int):
        _count("syncs")
        return self.held.detach().__reduce_ex__(protocol)  # files have the values


def _held(value: torch.Tensor) -> torch.Tensor:
    return value.held if isinstance(value, DeviceTensor) else value


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _map(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        mapped = [_map(function, each) for each in value]
        return mapped if isinstance(value, list) else tuple(mapped)
    return value


def _device(device: torch.device | str | None) -> torch.device | None:
    device = torch.device("cpu" if device is None else device)
    if device.type != NAME:
        return None
    return torch.device(NAME, device.index or 0)


def _run(func, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU, after the checks that CUDA makes, and say on which device the result is."""
    if func is aten._to_copy.default:
        return _to_copy(*args, **kwargs)
    if func is aten.copy_.default:
        _copy(*args)
        return args[0]
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    on_devices = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    device = on_devices[0].device if on_devices else None
    if on_devices:
        _check(func, args, tensors)
    if func in _SYNCHRONISING or (func in _READS_AT | _WRITES_AT and _has_masks(args[1])):
        _count("syncs")
    kwargs = {name: _map(_held, value) for name, value in kwargs.items() if name != "pin_memory"}
    if "device" in kwargs:  # of something new
        wanted = kwargs["device"]
        device = device if wanted is None else _device(wanted)
        kwargs["device"] = torch.device("cpu")
    result = func(*_map(_held, args), **kwargs)
    if device is None:
        return result
    given = {id(tensor.held): tensor for tensor in on_devices}  # what is changed in place is returned as it was given

    def on_device(value: torch.Tensor) -> DeviceTensor:
        return given[id(value)] if id(value) in given else DeviceTensor(value, device)

    return _map(on_device, result)


def _check(func, args: tuple, tensors: list[torch.Tensor]) -> None:
    """Raise a `RuntimeError` if CUDA would refuse tensors of these devices, or the computation itself."""
    if func in _NOT_DETERMINISTIC and torch.are_deterministic_algorithms_enabled() and args[0].is_floating_point():
        raise RuntimeError(f"{func} does not have a deterministic implementation")
    if func in _READS_AT | _WRITES_AT:
        values, *rest = [args[0], *args[2:3]]
        indices = [index for index in args[1] if index is not None]
        for index in indices:
            if index.device != values.device:
                if index.device.type != "cpu":
                    raise RuntimeError(
                        "indices should be either on cpu or on the same device as the indexed tensor "
                        f"({values.device}), got {index.device} ({func})"
                    )
                _count("copies")
        tensors = [values, *(value for value in rest if value.device.type != "cpu" or value.dim())]
    elif _takes_numbers(func):
        tensors = [tensor for tensor in tensors if tensor.device.type != "cpu" or tensor.dim()]
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(devices)}! ({func})"
        )


@cache
def _takes_numbers(func) -> bool:
    return torch.Tag.pointwise in func.tags or func in _TAKES_NUMBERS


def _has_masks(indices: list[torch.Tensor | None]) -> bool:
    return any(isinstance(index, DeviceTensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _to_copy(source: torch.Tensor, *, device=None, non_blocking: bool = False, **kwargs) -> torch.Tensor:
    target = source.device if device is None else torch.device(device)
    result = torch.empty_like(source, device=target, **{k: v for k, v in kwargs.items() if k != "pin_memory"})
    _copy(result, source, non_blocking)
    return result


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
    """Copy between any devices. To the host, the host waits unless it says that it does not."""
    if isinstance(source, DeviceTensor) and not isinstance(target, DeviceTensor) and not non_blocking:
        _count("syncs")
    if isinstance(target, DeviceTensor) and not isinstance(source, DeviceTensor):
        _count("copies")
    _held(target).copy_(_held(source))


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None) -> DeviceTensor:
    return DeviceTensor(torch.empty(size, dtype=dtype), _device(device))


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None) -> DeviceTensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype), _device(device))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _copy(target, source, non_blocking)
    return target


class _Module:
    _device = 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """It has no random numbers of its own."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]  # gradient checkpointing asks, although nothing is autocast

    def device_count(self) -> int:
        return NUM_DEVICES

    def current_device(self) -> int:
        return 0


_setup_privateuseone_for_python_backend(NAME, _Module())
# Kept alive: what they register goes with them.
_FALLBACK = torch.library.Library("_", "IMPL")
_FALLBACK.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
_KERNELS = torch.library.Library("aten", "IMPL")
_KERNELS.impl("empty.memory_format", _empty, "PrivateUse1")
_KERNELS.impl("empty_strided", _empty_strided, "PrivateUse1")
_KERNELS.impl("_copy_from", _copy_from, "PrivateUse1")
torch.autograd.set_multithreading_enabled(False)  # in this thread: no other runs the backward passes of a device
torch.accelerator.synchronize = lambda device=None: None  # there are no streams
torch.__future__.set_swap_module_params_on_conversion(True)  # `Module.to` keeps parameters that modules share


@contextmanager
def default_device(device: str = f"{NAME}:0") -> Iterator[torch.device]:
    """Let Accelerate, and so a trainer without `use_cpu`, take a device for the process's own."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = device
    try:
        yield torch.device(device)
    finally:
        del os.environ["ACCELERATE_TORCH_DEVICE"]
        AcceleratorState._reset_state(reset_partial_state=True)
