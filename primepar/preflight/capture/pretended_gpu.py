"""A GPU for each rank that is not there: its tensors are on the CPU, and their device is `cuda:0`.

A script that asks whether there is a GPU finds one for each local rank. What it puts there is
computed on the CPU, by the same operations in the same order. For example

    layer = nn.Linear(4, 4).to("cuda:1")
    layer.weight.device                     # device(type='cuda', index=1), an answer of this file

The device of a tensor is that of its storage, and so it is noted there (`BufferTable.place`). What
is computed from tensors of a GPU is on that GPU too: `WatchedOperations` sees to it. A copy between
CPU and GPU is a copy here too, so that what is written to one is not seen in the other.

Random numbers of the GPU have a state of their own, a seed and an offset as Philox has. Each
drawing seeds the CPU's generator with both, and puts it back afterwards.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from inspect import isfunction, isgeneratorfunction, unwrap
from types import SimpleNamespace
from typing import Any, get_origin

import torch
import torch.utils._device as default_device
from torch.distributed.tensor import DTensor, Partial
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.buffers import BufferTable
from primepar.preflight.capture.source_lines import source_line
from primepar.preflight.meaning.storages import local_part

MEMORY = 80 << 30
"""Bytes that a pretended GPU has, all of them free."""
_INTERNAL = ("_lazy_init", "_sleep", "_record_memory_history", "_snapshot", "_dump_snapshot")
"""Functions of `torch.cuda` that scripts or torch call all the same."""
_DEFAULT_SEED = 67280421310721
"""Of torch's generators, where a script sets none."""


class PretendedGpus:
    """The GPUs that one rank sees, and which of them it has chosen."""

    def __init__(self, table: BufferTable, count: int) -> None:
        self._table = table
        self.count, self.current = count, 0
        self.asked: dict[str, str] = {}
        """What the script or a library asked of a GPU, and the first line that did."""
        self.creating = False
        """Whether a tensor is created on a GPU now."""
        self._seed, self._offset = _DEFAULT_SEED, 0

    def index(self, device: Any) -> int | None:
        """The GPU that a device names; None where it names none."""
        if isinstance(device, str) and device.startswith("cuda"):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type != "cuda":
                return None
            return self.current if device.index is None else device.index
        return device if isinstance(device, int) and not isinstance(device, bool) else None

    def of(self, tensor: torch.Tensor) -> int | None:
        """The GPU that a tensor is on; None for a tensor on the CPU."""
        return self._table.device(local_part(tensor))

    def place(self, result: Any, index: int | None, how: str = "") -> Any:
        """Let a new tensor, or a structure of them, be on a GPU; return it."""
        if how:
            self.note(how)
        if isinstance(result, torch.Tensor):
            self._table.place(local_part(result), index)
        elif isinstance(result, list | tuple):
            for part in result:
                self.place(part, index)
        return result

    def note(self, name: str) -> None:
        """Remember what was asked."""
        if name not in self.asked:
            self.asked[name] = source_line()

    @contextmanager
    def random_numbers(self) -> Iterator[None]:
        """While an operation draws numbers of the GPU's generator."""
        generator = torch.default_generator
        with _disable_current_modes():
            before = generator.get_state()
            generator.manual_seed(hash((self._seed, self._offset)) & (1 << 63) - 1)
        self._offset += 4
        try:
            yield
        finally:
            with _disable_current_modes():
                generator.set_state(before)

    def install(self) -> None:
        """Let torch answer as if the GPUs were there."""
        constructors()  # collects the originals, before they are replaced
        torch.jit._state.disable()
        self._replace_of_tensors()
        self._replace_constructors()
        self._replace_modules()
        self._replace_mixed_precision()
        functional: Any = torch.nn.functional
        functional.scaled_dot_product_attention = _attention(
            functional.scaled_dot_product_attention
        )
        torch.serialization.register_package(5, self._location, self._load)

    def _replace_of_tensors(self) -> None:
        tensors: Any = torch.Tensor
        real, kind = tensors.device, tensors.type
        move: Callable[..., torch.Tensor] = tensors.to
        copy: Callable[..., torch.Tensor] = tensors.__deepcopy__

        def device(tensor: torch.Tensor) -> torch.device:
            there = real.__get__(tensor)
            index = self.of(tensor) if there.type == "cpu" else None
            return there if index is None else torch.device("cuda", index)

        def to(tensor: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
            if args and isinstance(args[0], torch.Tensor):
                args = (args[0].device, args[0].dtype, *args[1:])
            if args and not isinstance(args[0], torch.dtype):
                named |= dict(zip(("device", "dtype", "non_blocking", "copy"), args, strict=False))
                args = ()
            asked = named.pop("device", None)
            index, here = self.index(asked), self.of(tensor)
            if asked is None or (index is None and torch.device(asked).type != "cpu"):
                return move(tensor, asked, **named) if asked else move(tensor, *args, **named)
            if index != here:
                named["copy"] = True
            moved = move(tensor, "cpu", *args, **named)
            self.place(moved, index, "" if index in (None, here) else "tensors")
            return moved

        def deepcopy(tensor: torch.Tensor, memo: Any) -> torch.Tensor:
            result = copy(tensor, memo)
            self.place(result, self.of(tensor))
            return result

        def type_(tensor: torch.Tensor, dtype: Any = None, *args: Any, **named: Any) -> Any:
            if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
                return kind(tensor.cuda(), "torch." + dtype[11:])
            name = kind(tensor, dtype, *args, **named)
            return (
                name.replace("torch.", "torch.cuda.") if dtype is None and tensor.is_cuda else name
            )

        for name, stand_in in {
            "device": property(device),
            "is_cuda": property(lambda tensor: tensor.device.type == "cuda"),
            "is_cpu": property(lambda tensor: tensor.device.type == "cpu"),
            "to": to,
            "cpu": lambda tensor, **named: to(tensor, "cpu", **named),
            "cuda": lambda tensor, device=None, *_, **named: to(
                tensor, self.current if device is None else device, **named
            ),
            "get_device": lambda tensor: -1 if self.of(tensor) is None else self.of(tensor),
            "type": type_,
            "pin_memory": lambda tensor, *_, **__: tensor,
            "is_pinned": lambda tensor, *_, **__: False,
            "record_stream": lambda tensor, stream: None,
            "__deepcopy__": deepcopy,
        }.items():
            setattr(tensors, name, stand_in)
        make = tensors._make_wrapper_subclass

        def make_wrapper(*args: Any, device: Any = None, **named: Any) -> Any:
            return make(*args, device="cpu" if self.index(device) is not None else device, **named)

        native: Any = torch._C._nn
        parse = native._parse_to

        def parse_to(*args: Any, **named: Any) -> Any:
            if args and isinstance(args[0], int) and not isinstance(args[0], bool):
                args = (torch.device("cuda", args[0]), *args[1:])
            return parse(*args, **named)

        native._parse_to = parse_to
        tensors._make_wrapper_subclass = staticmethod(make_wrapper)

    def _replace_constructors(self) -> None:
        """Functions that take a device: a GPU's is the CPU here, and is noted of the result."""
        for place, name, creates in constructors():
            setattr(place, name, self._constructor(getattr(place, name), creates))
        generator = torch.Generator

        class Generator(generator):  # type: ignore[misc,valid-type]
            def __new__(cls, device: Any = "cpu") -> Any:
                return generator("cpu")

        torch.Generator = Generator  # type: ignore[misc]

    def _constructor(self, function: Callable[..., Any], creates: bool) -> Callable[..., Any]:
        @wraps(function)
        def constructor(*args: Any, **named: Any) -> Any:
            named.pop("pin_memory", None)
            device = named.get("device")
            if device is None and creates:
                device = default_device.CURRENT_DEVICE
            index = self.index(device)
            if index is None:
                result = function(*args, **named)
                return self.place(result, None) if str(device) == "cpu" else result
            before, self.creating = self.creating, True
            try:
                result = function(*args, **named | {"device": "cpu"})
            finally:
                self.creating = before
            return self.place(result, index, "tensors")

        return constructor

    def _replace_modules(self) -> None:
        """`torch.cuda`, and what `torch.accelerator` calls."""
        cuda: Any = torch.cuda
        torch.version.cuda = "12.8"
        stream = GpuStream(self)
        properties = SimpleNamespace(
            name="pretended GPU", major=9, minor=0, total_memory=MEMORY, multi_processor_count=132,
            warp_size=32,
        )  # fmt: skip
        answers = {
            "is_available": True,
            "is_initialized": True,
            "device_count": self.count,
            "get_device_name": properties.name,
            "get_device_capability": (9, 0),
            "get_device_properties": properties,
            "is_bf16_supported": True,
            "is_tf32_supported": True,
            "is_current_stream_capturing": False,
            "mem_get_info": (MEMORY, MEMORY),
            "can_device_access_peer": True,
        }
        asked = {name: _always(answer) for name, answer in answers.items()}
        asked |= {"current_device": lambda: self.current, "set_device": self._set_device}
        asked = {name: self._asked(f"torch.cuda.{name}", one) for name, one in asked.items()}
        for place in (cuda, cuda.memory, cuda.nvtx, cuda.profiler):
            vars(place).update(
                {
                    name: asked.get(name) or _empty(function)
                    for name, function in vars(place).items()
                    if isfunction(function)
                    and not isgeneratorfunction(unwrap(function))
                    and (name[0] != "_" or name in _INTERNAL)
                }
            )
        cuda.cudart = _always(_instant("Runtime", cudaProfilerStart=0, cudaProfilerStop=0)())
        cuda.manual_seed = cuda.manual_seed_all = self._manual_seed
        cuda.seed = cuda.seed_all = lambda: self._manual_seed(_DEFAULT_SEED)
        cuda.initial_seed = lambda: self._seed
        cuda.get_rng_state = lambda device="cuda": self._random_state()
        cuda.get_rng_state_all = lambda: [self._random_state() for _ in range(self.count)]
        cuda.set_rng_state = lambda state, device="cuda": self._set_random_state(state)
        cuda.set_rng_state_all = lambda states: self._set_random_state(states[self.current])
        cuda.default_stream = cuda.current_stream = lambda device=None: stream
        cuda.stream = cuda.StreamContext = lambda stream: stream or GpuStream(self)
        # A class, of which annotations as `Stream | None` are made.
        begin = GpuStream.__init__
        cuda.Stream = type("Stream", (GpuStream,), {
            "__init__": lambda stream, *_, **__: begin(stream, self)
        })  # fmt: skip
        torch.Stream = cuda.ExternalStream = cuda.Stream  # type: ignore[misc]
        torch.Event = cuda.Event = GpuEvent  # type: ignore[misc]
        cuda.device = cuda.device_of = self._chosen
        for name in dir(cuda):
            if name.endswith("Tensor") and name != "Tensor" and hasattr(torch, name):
                setattr(cuda, name, self._legacy(getattr(torch, name)))
        from torch._prims.rng_prims import run_dtensor_rng_op

        draw: Any = run_dtensor_rng_op.py_kernels[torch._C.DispatchKey.CUDA]
        of_dtensor: Any = type(run_dtensor_rng_op)
        of_dtensor.__call__ = lambda _, *args, **named: draw(*args, **named)
        device = torch.device("cuda")
        native: Any = torch._C
        constants = {
            "_get_accelerator": device,
            "_accelerator_getAccelerator": device,
            "_accelerator_getStream": stream,
            "_accelerator_setStream": None,
            "_accelerator_synchronizeDevice": None,
            "_accelerator_isAllocatorInitialized": False,
            "_accelerator_getMemoryInfo": (MEMORY, MEMORY),
            "_accelerator_getDeviceCapability": {"supported_dtypes": set[Any]()},
        }
        for name, constant in constants.items():
            setattr(native, name, _always(constant))
        native._accelerator_getDeviceIndex = lambda: self.current
        native._accelerator_setDeviceIndex = self._set_device
        native._accelerator_exchangeDevice = native._accelerator_maybeExchangeDevice = (
            self._exchange
        )
        for name in ("is_available", "current_accelerator", "device_count", "set_device_index"):
            answer = getattr(torch.accelerator, name)
            setattr(torch.accelerator, name, self._asked(f"torch.accelerator.{name}", answer))

    def _asked(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        """An answer that is noted if a script or a library asks for it, not torch by itself."""

        @wraps(answer)
        def noted(*args: Any, **named: Any) -> Any:
            if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch"):
                self.note(name)
            return answer(*args, **named)

        return noted

    def _set_device(self, device: Any) -> None:
        index = self.index(device)
        if index is not None and index >= 0:
            if index >= self.count:
                raise RuntimeError(
                    f"CUDA error: invalid device ordinal: cuda:{index} of {self.count} pretended "
                    "GPUs"
                )
            self.current = index

    def _exchange(self, index: int) -> int:
        before = self.current
        self._set_device(index)
        return before

    @contextmanager
    def _chosen(self, device: Any = None) -> Iterator[None]:
        """The scope of `torch.cuda.device`."""
        before = self.current
        self._set_device(device.device if isinstance(device, torch.Tensor) else device)
        try:
            yield
        finally:
            self.current = before

    def _legacy(self, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args: self.place(make(*args), self.current, "tensors")

    def _manual_seed(self, seed: int) -> None:
        self._seed, self._offset = int(seed) % (1 << 63), 0

    def _random_state(self) -> torch.Tensor:
        with _disable_current_modes():
            return torch.tensor([self._seed, self._offset]).view(torch.uint8)

    def _set_random_state(self, state: torch.Tensor) -> None:
        with _disable_current_modes():
            self._seed, self._offset = state.view(torch.int64).tolist()

    def _replace_mixed_precision(self) -> None:
        """Autocast of the GPU is that of the CPU, with the GPU's type.

        A scaler begins with 1, as with 65536 the first steps overflow, and steps are taken as a
        rule: whether a gradient of all ranks overflows is not known here.
        """
        scaler: Any = torch.amp.GradScaler
        begin = scaler.__init__

        def maybe_step(_: Any, optimizer: Any, state: Any, *args: Any, **named: Any) -> Any:
            overflows = state["found_inf_per_device"].values()
            finite = all(torch.equal(one, torch.zeros_like(one)) for one in overflows)
            return optimizer.step(*args, **named) if finite else None

        scaler._maybe_opt_step = maybe_step
        scaler.__init__ = lambda scaler, device="cuda", init_scale=1.0, *args, **named: begin(
            scaler, device, 1.0, *args, **named
        )
        autocast: Any = torch.autocast
        start = autocast.__init__

        def init(scope: Any, device_type: str, dtype: Any = None, *args: Any, **named: Any) -> None:
            if device_type == "cuda":
                device_type, dtype = "cpu", dtype or torch.float16
            start(scope, device_type, dtype, *args, **named)

        autocast.__init__ = init
        for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled",
                     "set_autocast_dtype"):  # fmt: skip
            setattr(torch, name, _on_cpu(getattr(torch, name)))

    def _location(self, storage: Any) -> str | None:
        """Where a storage is, for `torch.save`."""
        index = self._table.device_of(storage)
        return None if index is None else f"cuda:{index}"

    def _load(self, storage: Any, location: str) -> Any:
        """A loaded storage, on the GPU that `map_location` or the file names."""
        index = self.index(location)
        if index is None:
            return None
        with _disable_current_modes():
            self.place(torch.empty(0, dtype=torch.uint8).set_(storage), index, "tensors")
        return storage


@cache
def constructors() -> list[tuple[Any, str, bool]]:
    """What makes tensors: where it is, its name, and whether it makes one of nothing.

    Asked once, before ranks fork.
    """
    create = default_device._device_constructors()
    return [
        (place, name, function in create)
        for place in (torch, torch.Tensor)
        for name in dir(place)
        if callable(function := getattr(place, name))
        and (name.startswith("new_") or name.endswith("_like") or function in create)
    ]


def _always(answer: Any) -> Callable[..., Any]:
    """A function or method that answers the same, whatever it is given."""
    return lambda *_, **__: answer


def _empty(function: Any) -> Callable[..., Any]:
    """A function that returns nothing of the type that another one states: 0, "" or None."""
    stated = function.__annotations__.get("return")
    kind = get_origin(stated) or stated
    if kind is dict:  # of statistics
        return lambda *_, **__: defaultdict(int)
    return _always(kind() if kind in (bool, int, float, str, list) else None)


def _instant(name: str, **answers: Any) -> Any:
    """A class whose methods answer the same: all of it has happened, in the order of the script."""
    return type(name, (), {method: _always(answer) for method, answer in answers.items()})


GpuEvent = _instant("GpuEvent", __init__=None, record=None, query=True, elapsed_time=1.0, wait=None,
                    synchronize=None)  # fmt: skip
_Stream = _instant("_Stream", record_event=GpuEvent(), query=True, is_capturing=False,
                   wait_stream=None, wait_event=None, synchronize=None, __exit__=None)  # fmt: skip


class GpuStream(_Stream):  # type: ignore[misc,valid-type]
    """A stream: all streams run in the order of the script."""

    def __init__(self, gpus: PretendedGpus) -> None:
        self.device = torch.device("cuda", gpus.current)
        self.device_index, self.stream_id, self.cuda_stream, self.priority = gpus.current, 0, 0, 0

    def __enter__(self) -> GpuStream:
        return self


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def on_cpu(device_type: Any = "cuda", *args: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *args)

    return on_cpu


def _attention(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention of DTensors that are cut by sequences and heads, each rank's part by itself.

    DTensor knows so of the kernels of GPUs, and not of the one that the CPU has.
    """

    @wraps(original)
    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **named: Any
    ) -> torch.Tensor:
        parts = (query, key, value)
        cuts = {part.placements if isinstance(part, DTensor) else None for part in parts}
        places = next(iter(cuts))
        if len(cuts) > 1 or not all(
            place.is_replicate() or place.is_shard(0) or place.is_shard(1)
            for place in places or [Partial()]
        ):
            return original(*parts, *args, **named)
        mesh = parts[0].device_mesh  # type: ignore[attr-defined]
        local = [part.to_local() for part in parts]  # type: ignore[attr-defined]
        result = original(*local, *args, **named)
        return from_local(result, mesh, places)

    from_local = DTensor.from_local
    return attention
