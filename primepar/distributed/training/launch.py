"""The world of a run: its processes meet, compare what they have, and start torch.distributed."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from primepar.distributed.training.activity import Activity
from primepar.distributed.training.alike import Facts, differences
from primepar.distributed.training.backends import (
    check_devices,
    check_network,
    keep_freed_memory,
    pick_device,
    schedule_as_batch,
    used_device,
)
from primepar.distributed.training.failures import (
    GRACE_SECONDS,
    abort_groups,
    failure_of,
    is_first,
    is_lost_peer,
)
from primepar.distributed.training.launchers import Launch, WorldPlace, meet
from primepar.distributed.training.settings import TIMEOUT, DeviceChoice
from primepar.distributed.training.watchdog import Watchdog
from primepar.errors import LaunchError, PrimeParError

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

NCCL_VARIABLES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NCCL_RUNTIME_CONNECT": "0"}
"""What NCCL and CUDA read before their first call, unless the user has set it: one queue of the GPU
for each communicator (8 by default, which then wait for each other), and connections of collectives
at the start (by default in the first call of each algorithm, which holds up the host)."""
PATIENCE = timedelta(days=1)
"""How long a rank waits for the others' answers: rank 0 may prove a large program meanwhile.

The watchdog ends the rank if another one is silent."""
HOSTS = "GROUP_WORLD_SIZE"
"""Variable in which torchrun gives the number of hosts."""


@dataclass(frozen=True)
class World:
    """The processes after the rendezvous; `store` is a key-value store that they share."""

    rank: int
    size: int
    device: torch.device
    store: Store
    activity: Activity = field(default_factory=Activity)

    @contextmanager
    def agreement(self, name: str) -> Iterator[None]:
        """Run a part of the setup on every rank, and continue only if no rank failed.

        The lowest rank that failed raises its error; the others exit without a message. After an
        exit code of 0 mpirun gives that rank the time to print. Where each host has its own
        torchrun, this one would wait five minutes for the others: then the code is an error's.
        """
        error: PrimeParError | None = None
        try:
            yield
        except PrimeParError as raised:
            error = raised
        ends = self.exchange(name, "failed" if error else "done")
        if "failed" not in ends:
            return
        # Rank 0 and its store run until every rank has read the answers.
        self.store.set(f"{name}-read/{self.rank}", "")
        if self.rank == 0:
            self.store.wait([f"{name}-read/{rank}" for rank in range(self.size)], PATIENCE)
        if error is not None and ends.index("failed") == self.rank:
            raise error
        if int(os.environ.get(HOSTS, "1")) > 1:
            time.sleep(GRACE_SECONDS)  # a torchrun that ends a failed rank ends its neighbours
            raise SystemExit(LaunchError.exit_code)
        raise SystemExit(0)

    def exchange(self, name: str, text: str) -> list[str]:
        """Return what every rank gives under a name, in the order of ranks; a collective call."""
        self.store.set(f"{name}/{self.rank}", text)
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        self.store.wait(keys, PATIENCE)
        return [self.store.get(key).decode() for key in keys]

    def check_alike(self, name: str, facts: Facts) -> None:
        """Compare the facts of all ranks. Raises `LaunchError` if any rank has others than rank 0.

        A collective call, in an `agreement`.
        """
        texts = self.exchange(f"{name}/facts", msgspec.json.encode(facts).decode())
        different = differences([msgspec.json.decode(text) for text in texts])
        if different:
            raise LaunchError(
                f"ranks: expected what rank 0 has on every rank, got {different}: start all ranks "
                "with one command line, on machines with the same files and the same version"
            )


@contextmanager
def joined(
    launch: Launch,
    choice: DeviceChoice,
    facts: Facts | None = None,
    timeout: float = TIMEOUT,
) -> Iterator[World]:
    """Initialise the process group, and destroy it at the end, or abort it after an error.

    The ranks first compare their `facts`. Raises `LaunchError` on one rank if they differ, if the
    launcher's MPI is not that of mpi4py, or if a process has no device of its own. An error that
    ranks meet in the body is reported once. The process ends if another one does not answer for
    `timeout` seconds.
    """
    import torch
    from torch.distributed.distributed_c10d import PrefixStore

    for name, value in NCCL_VARIABLES.items():
        os.environ.setdefault(name, value)
    with launch.one_error():
        place = meet(launch)
    store = PrefixStore("primepar", place.store)
    activity = Activity(place.rank, place.size)
    world = World(place.rank, place.size, torch.device("cpu"), store, activity)
    watchdog = Watchdog(activity, store, place, timeout)
    with (
        watchdog if place.size > 1 else nullcontext(),
        _connected(launch, world, place, choice, facts) as device,
        first_error(store, place.rank, watchdog),
    ):
        yield replace(world, device=device)


@contextmanager
def _connected(
    launch: Launch, world: World, place: WorldPlace, choice: DeviceChoice, facts: Facts | None
) -> Iterator[torch.device]:
    """Compare the facts of all ranks, and start torch.distributed on the chosen device."""
    import torch
    from torch import distributed as dist

    with world.agreement("device"):
        device = pick_device(choice, place.local_rank)
    with world.agreement("alike"):
        world.check_alike("alike", {**(facts or {}), "device": device.type})
    if device.type == "cuda":
        with world.agreement("devices"):
            check_devices(used_device(device), world.exchange)
        torch.cuda.set_device(device)
    if device.type == "cpu":
        keep_freed_memory()
    if launch.launcher != "alone":
        if device.type == "cpu":
            with world.agreement("network"):
                check_network(world.rank, world.exchange)
            schedule_as_batch()
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=place.store,
            rank=place.rank,
            world_size=place.size,
            timeout=PATIENCE,  # the watchdog measures waits, and knows proofs from steps
            device_id=device if device.type == "cuda" else None,
        )
    try:
        yield device
    except BaseException:
        abort_groups()
        raise
    # A mesh keeps a group and its threads; they must end before the interpreter does.
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def first_error(store: Store, rank: int, watchdog: Watchdog) -> Iterator[None]:
    """Report an error that ranks meet on their own once: the first rank to fail raises it.

    A rank that fails later, or because another has ended, waits for the launcher to end the job,
    and exits without a message. Where nobody ends it, it reports the other's end itself. An error
    that is no user's error, with its traceback, is raised on each rank.
    """
    try:
        yield
    except Exception as raised:
        where = watchdog.activity.text
        watchdog.activity.fail()
        error = raised if isinstance(raised, PrimeParError) else failure_of(raised, rank, where)
        lost = is_lost_peer(raised)
        if lost:
            time.sleep(watchdog.grace)
        # Without the store the watchdog still knows whether a rank has reported an error before.
        first = watchdog.failed is None and is_first(store, watchdog.reports_alone)
        if first or error is None:
            watchdog.leave()  # this rank has a message, and must not be ended before it
        if error is None:
            raise
        if not first:
            time.sleep(0.0 if lost else watchdog.grace)
            raise SystemExit(error.exit_code) from None
        raise error from None


def check_installed(launch: Launch, *packages: str) -> None:
    """Raise `LaunchError`, with the command that installs it, for a missing package.

    Under mpirun the processes meet by mpi4py.
    """
    for package in (*packages, *["mpi4py"] * (launch.launcher == "mpirun")):
        if find_spec(package) is None:
            raise LaunchError(
                f"training: expected the package {package}, found none: "
                "run pip install 'primepar[torch]'"
            )
