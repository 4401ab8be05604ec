"""The device of each process: chosen by itself, then compared with those of the others."""

from __future__ import annotations

import os
import platform
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from primepar.distributed.training.failures import answers
from primepar.distributed.training.settings import DeviceChoice
from primepar.errors import LaunchError

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store


class UsedDevice(NamedTuple):
    """What a process reports to the others of its GPU: the host that it is in, and its UUID."""

    host: str
    gpu: str


def pick_device(choice: DeviceChoice, local_rank: int) -> torch.device:
    """Return the device of a process: its own GPU if CUDA is available, else the CPU.

    A process sees all GPUs of its machine, or only its own: then that is `cuda:0` on every rank.
    Raises `LaunchError` if CUDA is asked for and absent.
    """
    import torch

    from primepar.distributed.runtime.backend_support import missing_cuda

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "cpu" or (choice == "auto" and gpus == 0):
        return torch.device("cpu")
    if gpus == 0:
        raise LaunchError(
            f"training.device: expected CUDA, got {missing_cuda()}, or write --set "
            "training.device=cpu"
        )
    return torch.device("cuda", local_rank % gpus)


def used_device(device: torch.device) -> UsedDevice:
    """Return the host and the GPU of a process as NCCL distinguishes them.

    NCCL takes the host's name from `NCCL_HOSTID` if that is set (`getHostHash` in its sources).
    """
    import torch

    name = str(torch.cuda.get_device_properties(device).uuid)
    return UsedDevice(os.environ.get("NCCL_HOSTID") or platform.node(), name)


def check_devices(used: UsedDevice, store: Store, rank: int, size: int) -> None:
    """Raise `LaunchError` on all ranks if two use one GPU: "Duplicate GPU detected" in NCCL.

    A collective call.
    """
    store.set(f"uses/{rank}", msgspec.json.encode(used).decode())
    everyone = [msgspec.json.decode(text, type=UsedDevice) for text in answers(store, size, "uses")]
    ranks_of_host = Counter(device.host for device in everyone)
    for host, gpus in Counter(device.host for device in set(everyone)).items():
        if gpus < ranks_of_host[host]:
            raise LaunchError(
                f"training.device: expected a GPU for each of {ranks_of_host[host]} processes on "
                f"this machine, got {gpus}, and NCCL takes one process on each: start {gpus} here, "
                "or write --set training.device=cpu"
            )
