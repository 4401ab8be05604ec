"""The device of each process: chosen by itself, then compared with those of the others."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from primepar.distributed.training.agreement import agreed
from primepar.distributed.training.settings import DeviceChoice
from primepar.errors import LaunchError

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

_CPU = "add --set training.device=cpu"


class UsedDevice(NamedTuple):
    """What a process tells the others of its device; `gpu` is the UUID of a GPU, else empty."""

    host: str
    gpu: str


def pick_device(choice: DeviceChoice, local_rank: int) -> torch.device:
    """Return the device of a process: its own GPU if CUDA is available, else the CPU.

    A process sees all GPUs of its machine, or only its own: then that is `cuda:0` on every rank.
    Raises `LaunchError` if CUDA is asked for and absent.
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "cpu" or (choice == "auto" and gpus == 0):
        return torch.device("cpu")
    if gpus == 0:
        raise LaunchError(
            f"training.device: expected a GPU that torch sees, got none: {_CPU}, or install a "
            "torch with CUDA and look at CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", local_rank % gpus)


def agreed_device(
    choice: DeviceChoice, store: Store, rank: int, size: int, local_rank: int
) -> torch.device:
    """Pick the device of every rank, and make a GPU the current one. A collective call.

    Raises `LaunchError` on one rank if devices do not fit together.
    """
    import torch

    with agreed(store, rank, size, "device"):
        device = pick_device(choice, local_rank)
    store.set(f"uses/{rank}", msgspec.json.encode(used_device(device)).decode())
    used = [msgspec.json.decode(store.get(f"uses/{peer}"), type=UsedDevice) for peer in range(size)]
    with agreed(store, rank, size, "devices"):
        check_devices(used)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def used_device(device: torch.device) -> UsedDevice:
    """Return the host and the GPU of a process as NCCL tells them apart.

    NCCL takes the host's name from `NCCL_HOSTID` if that is set (`getHostHash` in its sources).
    """
    import torch

    gpu = device.type == "cuda"
    name = str(torch.cuda.get_device_properties(device).uuid) if gpu else ""
    return UsedDevice(os.environ.get("NCCL_HOSTID") or platform.node(), name)


def check_devices(used: list[UsedDevice]) -> None:
    """Raise `LaunchError` for ranks on different kinds of devices, or two ranks on one GPU.

    NCCL refuses the latter: "Duplicate GPU detected".
    """
    without = [rank for rank, device in enumerate(used) if not device.gpu]
    if without and len(without) < len(used):
        raise LaunchError(
            f"device: expected a GPU on every rank or on none, got none on {_ranks(without)} of "
            f"{len(used)}: make a GPU visible to each, or {_CPU}"
        )
    by_gpu = defaultdict[UsedDevice, list[int]](list)
    for rank, device in enumerate(used):
        by_gpu[device].append(rank)
    shared = [ranks for device, ranks in by_gpu.items() if device.gpu and len(ranks) > 1]
    if shared:
        raise LaunchError(
            f"device: expected a GPU of its own for each of {len(used)} processes, as NCCL "
            f"demands, got one GPU for {_ranks(shared[0])}: start {len(by_gpu)} "
            f"process{'es' * (len(by_gpu) > 1)}, or {_CPU}"
        )


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
