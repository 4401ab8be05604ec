"""Lets a script that asks for GPUs and NCCL run on CPUs and gloo; Python imports it at its start.

Independent of what preflight pretends: each device that is named is replaced by the CPU, in every
call of torch, and tensors answer that they are there.
"""

import os

if "PUBLIC_SCRIPT_ON_GLOO" in os.environ:
    from collections import defaultdict
    from contextlib import nullcontext, suppress
    from types import SimpleNamespace

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from torch.nn.parallel import DistributedDataParallel
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors

    CPU = torch.device("cpu")
    torch.set_num_threads(1)
    LOCAL = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("PUBLIC_SCRIPT_ON_GLOO", "1")))

    class _DeviceKind(type):
        """Lets what torch makes be an instance of what takes the place of `torch.device`."""

        def __instancecheck__(cls, value):
            return isinstance(value, type(CPU))

    class NamedDevice(metaclass=_DeviceKind):
        """`torch.device`, in which a number alone is a GPU's."""

        def __new__(cls, kind, *args, **named):
            return CPU if isinstance(kind, int) else type(CPU)(kind, *args, **named)

    torch.device = NamedDevice

    def on_cpu(value):
        """A device that is a GPU's, as the CPU's."""
        if isinstance(value, type(CPU)) and value.type == "cuda":
            return CPU
        return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value

    class OnCpu(TorchFunctionMode):
        """Replaces devices in the arguments of every call."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            named = dict(kwargs or {})
            if func is type(CPU):
                return func(*args, **named)
            name = getattr(func, "__name__", "")
            if name in ("cuda", "pin_memory"):
                return args[0]
            if name == "record_stream":
                return None
            numbered = name in ("to", "_parse_to") and len(args) > (name == "to")
            args = [on_cpu(one) for one in args]
            place = 1 if name == "to" else 0
            if numbered and type(args[place]) is int:
                args[place] = CPU
            named = {key: on_cpu(value) for key, value in named.items()}
            if type(named.get("device")) is int:
                named["device"] = CPU
            if "pin_memory" in named:
                named["pin_memory"] = False
            return func(*args, **named)

    OnCpu().__enter__()
    _device_constructors.cache_clear()
    parse = torch._C._nn._parse_to
    torch._C._nn._parse_to = lambda *args, **named: parse(
        *[CPU if type(one) is int else on_cpu(one) for one in args],
        **{key: on_cpu(one) for key, one in named.items()},
    )
    torch.nn.Module.cuda = lambda module, device=None: module

    def always(answer=None):
        """A function that answers the same."""
        return lambda *_, **__: answer

    class Instant:
        """A stream or an event: all has happened."""

        def __init__(self, *_, **__):
            self.device, self.cuda_stream = CPU, 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def elapsed_time(self, _):
            return 1.0

        def query(self):
            return True

        record = wait = synchronize = wait_stream = wait_event = record_event = always()

    chosen = [int(os.environ.get("LOCAL_RANK", "0"))]
    answers = dict(
        is_available=True, is_initialized=True, device_count=LOCAL, get_device_name="none",
        get_device_capability=(9, 0), is_bf16_supported=True,
        is_current_stream_capturing=False, mem_get_info=(1 << 36, 1 << 36),
        get_device_properties=SimpleNamespace(
            name="none", major=9, minor=0, total_memory=1 << 36, multi_processor_count=132),
        memory_stats=defaultdict(int), memory_summary="", can_device_access_peer=True,
        current_stream=Instant(),
        default_stream=Instant(),
    )  # fmt: skip
    for name in dir(torch.cuda):
        if name.startswith(("reset_", "memory_", "max_memory", "set_per")):
            setattr(torch.cuda, name, always(0))
    for name in ("_lazy_init", "init", "synchronize", "empty_cache", "set_device", "ipc_collect",
                 "set_stream", "manual_seed", "manual_seed_all"):  # fmt: skip
        setattr(torch.cuda, name, always())
    for name, answer in answers.items():
        setattr(torch.cuda, name, always(answer))
    torch.cuda.nccl.version = always((2, 27, 5))
    torch.version.cuda = "12.8"
    torch.cuda.get_arch_list = always([])
    torch.cuda.set_device = lambda device: chosen.__setitem__(
        0, device if isinstance(device, int) else type(CPU)(device).index or 0
    )
    torch.cuda.current_device = lambda: chosen[0]
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    torch.cuda.get_rng_state_all = lambda: [torch.get_rng_state()]
    torch.cuda.set_rng_state_all = lambda states: torch.set_rng_state(states[0])
    torch.cuda.Stream = torch.cuda.Event = torch.Event = Instant
    torch.cuda.stream = torch.cuda.device = always(nullcontext())
    accelerator = torch.accelerator
    accelerator.is_available, accelerator.device_count = always(True), always(LOCAL)
    accelerator.current_accelerator = always(CPU)
    for name in ("set_device_index", "set_device_idx", "synchronize", "empty_cache"):
        setattr(accelerator, name, always())
    accelerator.current_device_index = accelerator.current_device_idx = lambda: chosen[0]

    functional, dense = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention

    def attention(query, key, value, *args, **named):
        """Of DTensors that are cut by heads, each part: DTensor knows no attention of CPUs."""
        if not hasattr(query, "to_local"):
            return dense(query, key, value, *args, **named)
        parts = (one.to_local() for one in (query, key, value))
        result = dense(*parts, *args, **named)
        return type(query).from_local(result, query.device_mesh, query.placements)

    functional.scaled_dot_product_attention = attention
    start_autocast = torch.autocast.__init__

    def autocast(scope, device_type="cpu", dtype=None, *args, **named):
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.bfloat16
        start_autocast(scope, device_type, dtype, *args, **named)

    torch.autocast.__init__ = autocast
    start_ddp = DistributedDataParallel.__init__

    def ddp(wrapper, module, device_ids=None, output_device=None, *args, **named):
        start_ddp(wrapper, module, None, None, *args, **named)

    DistributedDataParallel.__init__ = ddp

    def gloo(function):
        """A function of torch.distributed with gloo for NCCL."""

        def asked(*args, **named):
            args = ["gloo" if isinstance(one, str) and "nccl" in one else one for one in args]
            named = {key: "gloo" if isinstance(one, str) and "nccl" in one else one
                     for key, one in named.items() if key != "device_id"}  # fmt: skip
            return function(*args, **named)

        return asked

    for name in ("init_process_group", "new_group"):
        original = getattr(c10d, name)
        for module in (dist, c10d):
            setattr(module, name, gloo(original))
    with suppress(ImportError):
        from torch.distributed import device_mesh

        create = device_mesh.init_device_mesh

        def init_device_mesh(device_type, *args, **named):
            return create("cpu", *args, **named)

        dist.init_device_mesh = device_mesh.init_device_mesh = init_device_mesh
        start_mesh = device_mesh.DeviceMesh.__init__
        device_mesh.DeviceMesh.__init__ = lambda mesh, device_type, *args, **named: start_mesh(
            mesh, "cpu", *args, **named
        )
