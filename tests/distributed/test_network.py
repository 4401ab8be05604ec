"""Several hosts: names that stand for one host alone, and how a rank without a message leaves."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from primepar.distributed.training import agreement
from primepar.distributed.training.network import INTERFACE, check_network
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
        check_network(store, 1, 2)
        return
    with pytest.raises(LaunchError) as caught:
        check_network(store, 1, 2)
    assert str(caught.value) == (
        "rank 1: expected the name gpu07 to stand for an address that the other hosts reach, got "
        f"{address or '127.0.0.1'}: set GLOO_SOCKET_IFNAME on every host to the interface that "
        "they share, as ip addr shows it"
    )


@pytest.mark.parametrize(("hosts", "code"), [(None, 0), ("1", 0), ("2", 2)])
def test_a_rank_without_a_message_leaves_as_its_launcher_needs_it(
    monkeypatch: pytest.MonkeyPatch, hosts: str | None, code: int
) -> None:
    """After 0 a torchrun waits for the other host's, and mpirun for the rank with the message."""
    monkeypatch.setattr(agreement, "GRACE_SECONDS", 0.0)
    monkeypatch.delenv(agreement.HOSTS, raising=False)
    if hosts is not None:
        monkeypatch.setenv(agreement.HOSTS, hosts)
    store = HashStore()
    store.set("plan/1", "failed")
    store.set("plan-read/1", "")
    with pytest.raises(SystemExit) as left, agreement.agreed(store, 0, 2, "plan"):
        pass
    assert left.value.code == code
