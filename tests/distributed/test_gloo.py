"""What gloo needs: a name that stands for no host alone, and a scheduling policy."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from torch import device
from torch.distributed import HashStore  # type: ignore[attr-defined]

from primepar.distributed.training.backends import (
    INTERFACE,
    check_network,
    keep_freed_memory,
    schedule_as_batch,
)
from primepar.distributed.training.launch import World
from primepar.errors import LaunchError


@pytest.mark.parametrize(
    ("address", "other", "interface", "refused"),
    [
        ("127.0.1.1", "gpu08", None, True),
        ("::1", "gpu08", None, True),
        (None, "gpu08", None, True),  # the name stands for nothing
        ("10.0.0.7", "gpu08", None, False),
        ("fe80::1%eth0", "gpu08", None, False),
        ("127.0.1.1", "gpu07", None, False),  # one machine
        ("127.0.1.1", "gpu08", "eth0", False),
    ],
)
def test_an_address_of_this_machine_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    address: str | None, other: str, interface: str | None, refused: bool,
) -> None:  # fmt: skip
    def addresses(*_: Any) -> list[Any]:
        if address is None:
            raise socket.gaierror
        return [(None, None, None, "", (address, 0))]

    monkeypatch.setattr(socket, "gethostname", lambda: "gpu07")
    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    monkeypatch.delenv(INTERFACE, raising=False)
    if interface is not None:
        monkeypatch.setenv(INTERFACE, interface)
    store = HashStore()
    store.set("host/0", other)
    if not refused:
        check_network(1, World(1, 2, device("cpu"), store).exchange)
        return
    with pytest.raises(LaunchError) as caught:
        check_network(1, World(1, 2, device("cpu"), store).exchange)
    assert str(caught.value) == (
        "rank 1: expected the name gpu07 to stand for an address that the other hosts reach, got "
        f"{address or '127.0.0.1'}: set GLOO_SOCKET_IFNAME on every host to the interface that "
        "they share, as ip addr shows it"
    )


SCRIPT = """
import os, threading
from primepar.distributed.training.backends import schedule_as_batch
schedule_as_batch()
policies = [os.sched_getscheduler(0)]
thread = threading.Thread(target=lambda: policies.append(os.sched_getscheduler(0)))
thread.start()
thread.join()
print(policies == [os.SCHED_BATCH] * 2)
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_a_process_and_its_later_threads_run_as_batch_work() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_nothing_changes_where_the_policy_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    before = os.sched_getscheduler(0)
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    schedule_as_batch()
    assert os.sched_getscheduler(0) == before


def test_glibc_is_asked_to_keep_memory_and_nothing_changes_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The options have the numbers of glibc's malloc.h; another C library has no `mallopt`."""
    asked: list[tuple[int, int]] = []
    glibc = SimpleNamespace(mallopt=lambda *option: asked.append(option))
    for library in (glibc, object()):
        monkeypatch.setattr(ctypes, "CDLL", lambda _name, library=library: library)
        keep_freed_memory()
    assert asked == [(-1, 2**31 - 1), (-3, 2**25)]
