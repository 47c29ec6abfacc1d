"""A GPU for tests: this machine's, or a pretended one where it has none.

Tensors on the pretended GPU say that they are on ``cuda`` and hold real values, which the CPU computes. As on a GPU,
random numbers come of a generator of its own, operators refuse tensors of two devices, and nothing gets there or back
but by ``to``, ``cpu`` and the like. Operators and waits of the host are counted (``gpu_counts``). What depends on time
or on CUDA's own kernels cannot be seen on it.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import DefaultDeviceType

from helpers.gpu_counts import GpuCounts

RANDOM = {
    "native_dropout",
    "bernoulli",
    "bernoulli_",
    "rand_like",
    "randn_like",
    "uniform_",
    "normal_",
    "multinomial",
    "random_",
}
"""Operators that draw random numbers."""


class Gpu:
    """The state of the pretended device."""

    def __init__(self, num_gpus: int = 1) -> None:
        self.num_gpus, self.current = num_gpus, 0
        self.generator = torch.Generator().manual_seed(0)
        self.touched: list[int] = []
        """Numbers of the GPUs that were used, in the order of their first use: each has a context of this process."""
        self.counts = GpuCounts()
        self.devices_of_operators = FakeTensorMode(allow_non_fake_inputs=True)

    def touch(self, device: Any) -> None:
        number = torch.device(device).index
        number = self.current if number is None else number
        if number >= self.num_gpus:
            raise RuntimeError("CUDA error: invalid device ordinal")  # PyTorch's own words
        if number not in self.touched:
            self.touched.append(number)

    def set_device(self, device: Any) -> None:
        number = torch.device("cuda", device).index if isinstance(device, int) else torch.device(device).index
        self.touch(torch.device("cuda", number))
        self.current = number

    def draw(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Calls ``function``, whose random numbers come of this device's generator."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.generator.get_state())
        try:
            return function(*args, **kwargs)
        finally:
            self.generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)


_gpu = Gpu()


class OnGpu(Tensor):
    """A tensor on the pretended GPU; ``held`` is the one on the CPU that has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGpu":
        alike = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        alike |= {"dtype": held.dtype, "layout": held.layout, "device": held.device}
        made = Tensor._make_wrapper_subclass(cls, held.size(), **alike, requires_grad=False)
        made.held = held
        return made

    device = property(lambda self: torch.device("cuda", _gpu.current))
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def get_device(self) -> int:
        return _gpu.current

    def __repr__(self) -> str:
        return f"OnGpu({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, operator.overloadpacket.__name__
        if name == "_fused_sdp_choice":
            return 0  # plain attention: the CPU's fused operators are no GPU's
        given: list[Tensor] = []
        tree_map_only(Tensor, given.append, (args, kwargs))
        on_host = [x for x in given if not isinstance(x, OnGpu)]
        if name != "copy_" and on_host:
            _refuse_two_devices(operator, args, kwargs)
        _gpu.counts.operator(name, operator._overloadname, args, kwargs, on_host=on_host)
        bare_args, bare_kwargs = tree_map_only(OnGpu, lambda x: x.held, (args, kwargs))
        if name in RANDOM and kwargs.get("generator") is None:
            made = _gpu.draw(operator, *bare_args, **bare_kwargs)
        else:
            made = operator(*bare_args, **bare_kwargs)
        # What was changed in place stays the same tensor.
        known = {id(x.held): x for x in given if isinstance(x, OnGpu)}
        known |= {id(x): x for x in given if not isinstance(x, OnGpu)}
        # In inference mode, a view of an ordinary tensor is an ordinary one.
        is_view = any(
            found.alias_info is not None and not found.alias_info.is_write for found in operator._schema.returns
        )
        ordinary = is_view and torch.is_inference_mode_enabled() and not given[0].is_inference()
        with torch.inference_mode(False) if ordinary else contextlib.nullcontext():
            return tree_map_only(
                Tensor, lambda x: x if isinstance(x, OnGpu) else known.get(id(x)) if id(x) in known else OnGpu(x), made
            )


def _refuse_two_devices(operator: Any, args: tuple, kwargs: dict) -> None:
    """Raises ``RuntimeError`` where PyTorch would not take these tensors together, some of which are on the GPU.

    Newer versions of PyTorch raise a subclass of it.
    """

    def alike(x: Tensor) -> Tensor:
        return torch.empty_strided(
            x.shape, x.stride(), dtype=x.dtype, device="cuda:0" if isinstance(x, OnGpu) else "cpu"
        )

    with torch._C.DisableTorchFunction(), _gpu.devices_of_operators:  # these are no tensors of the pretended device
        args, kwargs = tree_map_only(Tensor, alike, (args, kwargs))
        with contextlib.suppress(DataDependentOutputException, DynamicOutputShapeException):
            operator(*args, **kwargs)


class _Up(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return OnGpu(x.clone())

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient.held


class _Down(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.held.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return OnGpu(gradient)


def _up(x: Tensor, *, non_blocking: bool = False) -> Tensor:
    if isinstance(x, OnGpu):
        return x
    _gpu.counts.copy_to_device(x, non_blocking=non_blocking)
    return _Up.apply(x) if x.requires_grad and torch.is_grad_enabled() else OnGpu(x.detach().clone())


def _down(x: Tensor) -> Tensor:
    if not isinstance(x, OnGpu):
        return x
    _gpu.counts.wait("copy to the host")
    return _Down.apply(x) if x.requires_grad and torch.is_grad_enabled() else x.held.clone()


def _is_cuda(x: Any) -> bool:
    return (isinstance(x, torch.device) and x.type == "cuda") or (isinstance(x, str) and x.split(":")[0] == "cuda")


class _Functions(TorchFunctionMode):
    """What is called with a device, or takes a tensor from one to another."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, first = dict(kwargs or {}), args[0] if args else None
        if function in (Tensor.backward, torch.autograd.backward):
            with self:  # what is computed again for the gradient is on the device, too
                engine = torch.autograd.graph._engine_run_backward
                return engine(
                    (first,), (torch.ones_like(first),), False, False, (), allow_unreachable=True, accumulate_grad=True
                )
        if function is Tensor.to:
            non_blocking = kwargs.pop("non_blocking", False) or True in [x for x in args[1:] if isinstance(x, bool)]
            return self._to(first, [*args[1:], *kwargs.values()], non_blocking=non_blocking)
        if function is Tensor.cpu:
            return _down(first)
        if function is Tensor.pin_memory:
            return _gpu.counts.pin(first)
        if function is Tensor.is_pinned:
            return _gpu.counts.is_pinned(first)
        if isinstance(first, OnGpu):
            if function is Tensor.tolist:
                _gpu.counts.wait("a value for the host")
                return first.held.tolist()
            if function is Tensor.numpy:
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            if function in (Tensor.untyped_storage, Tensor.data_ptr):
                return function(first.held)
        is_pinned = kwargs.pop("pin_memory", False)
        if not _is_cuda(kwargs.get("device")):
            made = function(*args, **kwargs)
            return _gpu.counts.pin(made) if is_pinned else made
        _gpu.touch(kwargs.pop("device"))
        made = function(*args, **kwargs)
        if function in (torch.tensor, torch.as_tensor, torch.asarray):
            return _up(made)
        return made if isinstance(made, OnGpu) else OnGpu(made)  # made on the device

    def _to(self, x: Tensor, wanted: list[Any], *, non_blocking: bool) -> Tensor:
        other = next((w for w in wanted if isinstance(w, Tensor)), None)
        device = next(
            (w for w in wanted if isinstance(w, (torch.device, str))), None if other is None else other.device
        )
        dtype = next((w for w in wanted if isinstance(w, torch.dtype)), x.dtype if other is None else other.dtype)
        if device is not None and _is_cuda(device):
            _gpu.touch(device)
            x = _up(x, non_blocking=non_blocking)
        elif device is not None:
            x = _down(x)
        return x if dtype == x.dtype else x.to(dtype)


def _submit(pool: ThreadPoolExecutor, function: Callable, *args: Any) -> Future:
    """``ThreadPoolExecutor.submit``; the device is there in the pool's threads, too: a ``TorchFunctionMode`` is of one
    thread."""

    def with_device() -> Any:
        with _Functions():
            return function(*args)

    return _plain_submit(pool, with_device)


_plain_submit = ThreadPoolExecutor.submit


@contextlib.contextmanager
def pretended(num_gpus: int = 1) -> Iterator[Gpu]:
    """A pretended GPU, or several of which one is used, whatever this machine has."""
    global _gpu
    _gpu = Gpu(num_gpus)
    # At the first backward pass of a process, autograd starts a thread for each device, and forbids to fork then.
    torch.ones(1, requires_grad=True).sum().backward()
    autocast, same_kind = torch.autocast, torch._has_compatible_shallow_copy_type
    cuda = {
        "_initialized": True,
        "is_available": lambda: False,  # no real one is used
        "device": lambda _: contextlib.nullcontext(),
        "current_device": lambda: _gpu.current,
        "set_device": _gpu.set_device,
        "device_count": lambda: num_gpus,
        "get_device_capability": lambda *_: (8, 0),
        "get_device_name": lambda *_: "pretended GPU",
        "max_memory_allocated": lambda *_: 0,
        "manual_seed_all": _gpu.generator.manual_seed,
        "get_rng_state": lambda *_: _gpu.generator.get_state(),
        "set_rng_state": lambda state, *_: _gpu.generator.set_state(state),
    }
    patches = [mock.patch.object(torch.cuda, name, value) for name, value in cuda.items()]
    patches.append(mock.patch.object(torch, "autocast", lambda kind, *args, **more: autocast("cpu", *args, **more)))
    # By this ``Module.to`` knows that a parameter on another device is another tensor.
    alike = lambda a, b: not isinstance(a, OnGpu) and not isinstance(b, OnGpu) and same_kind(a, b)  # noqa: E731
    patches.append(mock.patch.object(torch, "_has_compatible_shallow_copy_type", alike))
    patches.append(mock.patch.object(DefaultDeviceType, "_default_device_type", "cuda"))
    patches.append(mock.patch.object(ThreadPoolExecutor, "submit", _submit))
    # An RNN then leaves its weights where they are, and its kernel is made of ordinary operators.
    patches.append(mock.patch.object(torch.backends.cudnn, "is_acceptable", lambda _: False))
    # Gloo takes the values from process to process.
    join = dist.init_process_group
    patches.append(mock.patch.object(dist, "init_process_group", lambda backend, **more: join("gloo", **more)))
    patches.append(mock.patch.object(dist, "get_backend", lambda group=None: "nccl"))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(_Functions())
        yield _gpu


@contextlib.contextmanager
def gpu() -> Iterator[None]:
    """``torch.device("cuda")``: the real one where there is one, else a pretended one."""
    with contextlib.nullcontext() if torch.cuda.is_available() else pretended():
        yield
