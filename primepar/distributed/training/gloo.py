"""What gloo needs of the operating system: an address that others reach, and threads that wait.

A thread that posts a message holds a lock of gloo while it writes to the socket. The write wakes
the thread of gloo that receives, which tries the lock again and again until it is free. Where there
are more processes than cores, Linux often lets the woken thread preempt the one that has the lock.
Then it spins for the rest of its time slice, up to some milliseconds. A thread under SCHED_BATCH
does not preempt when it is woken.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from primepar.distributed.training.failures import answers
from primepar.errors import LaunchError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable that names the network interface for gloo."""


def check_network(store: Store, rank: int, size: int) -> None:
    """Raise `LaunchError` if gloo would offer other machines an address of this machine alone.

    gloo takes the address of the machine's own name, or the loopback address without one. Debian
    writes `127.0.1.1` for the name into /etc/hosts. A collective call.
    """
    host = socket.gethostname()
    store.set(f"host/{rank}", host)
    several = len(set(answers(store, size, "host"))) > 1
    if several and INTERFACE not in os.environ and _is_loopback(host):
        raise LaunchError(
            f"rank {rank}: expected the name {host} to stand for an address that the other hosts "
            f"reach, got {_address(host)}: set {INTERFACE} on every host to the interface that "
            "they share, as ip addr shows it"
        )


def _is_loopback(host: str) -> bool:
    return ip_address(_address(host)).is_loopback


def _address(host: str) -> str:
    """Return the first address of a name; the loopback address if there is none."""
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0]).partition("%")[0]
    except OSError:
        return "127.0.0.1"


def schedule_as_batch() -> None:
    """Run this thread, and the threads that it starts from now on, under SCHED_BATCH on Linux.

    Call it before gloo starts its threads. It needs no rights. Where the operating system does not
    have the policy, or does not allow it, nothing changes.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
