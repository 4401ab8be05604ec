"""The device of each process, and what NCCL and gloo need of the machines that they run on.

NCCL takes a GPU for each process, gloo an address that others reach, and threads that wait.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from primepar.distributed.training.settings import DeviceChoice
from primepar.errors import LaunchError

if TYPE_CHECKING:
    import torch

Exchange = Callable[[str, str], list[str]]
"""`World.exchange`: gives a text under a name, and returns those of all ranks."""
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable that names the network interface for gloo."""


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


def check_devices(used: UsedDevice, exchange: Exchange) -> None:
    """Raise `LaunchError` on all ranks if two use one GPU: "Duplicate GPU detected" in NCCL.

    A collective call.
    """
    texts = exchange("uses", msgspec.json.encode(used).decode())
    everyone = [msgspec.json.decode(text, type=UsedDevice) for text in texts]
    ranks_of_host = Counter(device.host for device in everyone)
    for host, gpus in Counter(device.host for device in set(everyone)).items():
        if gpus < ranks_of_host[host]:
            raise LaunchError(
                f"training.device: expected a GPU for each of {ranks_of_host[host]} processes on "
                f"this machine, got {gpus}, and NCCL takes one process on each: start {gpus} here, "
                "or write --set training.device=cpu"
            )


def check_network(rank: int, exchange: Exchange) -> None:
    """Raise `LaunchError` if gloo would offer other machines an address of this machine alone.

    gloo takes the address of the machine's own name, or the loopback address without one. Debian
    writes `127.0.1.1` for the name into /etc/hosts. A collective call.
    """
    host = socket.gethostname()
    if len(set(exchange("host", host))) == 1 or INTERFACE in os.environ:
        return
    try:
        address = str(socket.getaddrinfo(host, None)[0][4][0]).partition("%")[0]
    except OSError:
        address = "127.0.0.1"
    if ip_address(address).is_loopback:
        raise LaunchError(
            f"rank {rank}: expected the name {host} to stand for an address that the other "
            f"hosts reach, got {address}: set {INTERFACE} on every host to the interface that "
            "they share, as ip addr shows it"
        )


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees for the next step; elsewhere nothing changes.

    A step allocates each block where it is made. By default glibc gives large blocks, and the end
    of the heap, back to the operating system, and each step pays for their pages again.
    """
    trim_threshold, mmap_threshold = -1, -3  # numbers of the options in glibc's malloc.h
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(trim_threshold, 2**31 - 1)
        library.mallopt(mmap_threshold, 2**25)  # 32 MiB, the most that glibc allows


def schedule_as_batch() -> None:
    """Run this thread, and the threads that it starts from now on, under SCHED_BATCH on Linux.

    A thread that posts a message holds a lock of gloo while it writes to the socket. The write
    wakes the thread of gloo that receives, which tries the lock again and again until it is free.
    Where there are more processes than cores, Linux often lets the woken thread preempt the one
    that has the lock. Then it spins for the rest of its time slice, up to some milliseconds. A
    thread under SCHED_BATCH does not preempt when it is woken.

    Call it before gloo starts its threads. It needs no rights. Where the operating system does not
    have the policy, or does not allow it, nothing changes.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
