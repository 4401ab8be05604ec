"""Start of the processes and their rendezvous: under a launcher, or as one process alone.

Under mpirun, mpi4py gives rank, size and local rank. Rank 0 opens the rendezvous on a free port and
broadcasts it, so no port has to be configured. MPI is then finalized; gloo or NCCL do the rest.
Without MPI the processes that `--ranks` starts meet in a file.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from primepar.distributed.training.agreement import (
    GRACE_SECONDS,
    agreed,
    answers,
    first_error,
)
from primepar.distributed.training.alike import Facts, differences
from primepar.distributed.training.devices import check_devices, pick_device, used_device
from primepar.distributed.training.scheduling import schedule_as_batch
from primepar.distributed.training.settings import DeviceChoice
from primepar.errors import LaunchError, PrimeParError

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

Launcher = Literal["alone", "mpirun", "torchrun", "local"]

_MPI = {"OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE"}
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
RANK, RANKS, STORE = LOCAL = ("PRIMEPAR_RANK", "PRIMEPAR_RANKS", "PRIMEPAR_STORE")
"""Variables of a process that `--ranks` starts without MPI; the last is the file to meet in."""
ABORT_SECONDS = 5.0
"""How long a process waits for its communication to be aborted after an error."""


@dataclass(frozen=True)
class Launch:
    """What the environment variables state about the processes, before the rendezvous."""

    launcher: Launcher
    rank: int
    size: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch:
        """Read the variables that mpirun (Open MPI, MPICH), torchrun or `--ranks` set."""
        if all(name in environment for name in LOCAL):
            return cls("local", int(environment[RANK]), int(environment[RANKS]))
        if all(name in environment for name in _TORCHRUN):
            return cls("torchrun", int(environment["RANK"]), int(environment["WORLD_SIZE"]))
        for rank, size in _MPI.items():
            if rank in environment and size in environment:
                return cls("mpirun", int(environment[rank]), int(environment[size]))
        return cls("alone", 0, 1)

    @contextmanager
    def one_error(self) -> Iterator[None]:
        """Report an error that occurs on all ranks only once.

        Rank 0 raises at once, and its exit makes the launcher end the other ranks. A rank above 0
        raises after `GRACE_SECONDS`. So an error on that rank alone is reported too, without a
        hang.
        """
        try:
            yield
        except PrimeParError:
            if self.rank > 0:
                time.sleep(GRACE_SECONDS)
            raise


@dataclass(frozen=True)
class World:
    """The processes after the rendezvous; `store` is a key-value store that they share."""

    rank: int
    size: int
    device: torch.device
    store: Store

    @contextmanager
    def agreement(self, name: str) -> Iterator[None]:
        """Run a part of the setup on every rank, and continue only if no rank failed.

        The lowest rank that failed raises its error; the others exit without a message.
        """
        with agreed(self.store, self.rank, self.size, name):
            yield

    def check_alike(self, name: str, facts: Facts) -> None:
        """Compare the facts of all ranks. Raises `LaunchError` on rank 0 if any rank has others.

        A collective call, in an `agreement`.
        """
        self.store.set(f"{name}/facts/{self.rank}", msgspec.json.encode(facts).decode())
        if self.rank > 0:
            return
        everyone = [
            msgspec.json.decode(given) for given in answers(self.store, self.size, f"{name}/facts")
        ]
        different = differences(everyone)
        if different:
            raise LaunchError(
                f"ranks: expected what rank 0 has on every rank, got {different}: start all ranks "
                "with one command line, on machines with the same files and the same version"
            )


@dataclass(frozen=True)
class _Place:
    """Rank and size in the world, the rank on this machine, and the rendezvous store."""

    rank: int
    size: int
    local_rank: int
    store: Store


@contextmanager
def joined(launch: Launch, choice: DeviceChoice, facts: Facts | None = None) -> Iterator[World]:
    """Initialise the process group, and destroy it at the end, or abort it after an error.

    The ranks first compare their `facts`. Raises `LaunchError` on one rank if they differ, if the
    launcher's MPI is not that of mpi4py, or if a process has no device of its own. An error that
    ranks meet in the body is reported once.
    """
    import torch
    from torch import distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    with launch.one_error():
        place = _MEET[launch.launcher](launch)
    store = PrefixStore("primepar", place.store)
    world = World(place.rank, place.size, torch.device("cpu"), store)
    with world.agreement("device"):
        device = pick_device(choice, place.local_rank)
    with world.agreement("alike"):
        world.check_alike("alike", {**(facts or {}), "device": device.type})
    if device.type == "cuda":
        with world.agreement("devices"):
            check_devices(used_device(device), store, place.rank, place.size)
        torch.cuda.set_device(device)
    if launch.launcher != "alone":
        if device.type == "cpu":
            schedule_as_batch()
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=place.store,
            rank=place.rank,
            world_size=place.size,
            device_id=device if device.type == "cuda" else None,
        )
    try:
        with first_error(store, place.rank):
            yield replace(world, device=device)
    except BaseException:
        abort_groups()
        raise
    # A mesh keeps a group and its threads; they must end before the interpreter does.
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def abort_groups(seconds: float = ABORT_SECONDS) -> None:
    """Abort all process groups after an error, within a time limit.

    Peers may never join what is outstanding. `destroy_process_group` waits for it, as do the
    destructors of gloo's groups, which cannot abort. So the groups stay in memory until the
    process ends.
    """
    from torch import distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if not dist.is_initialized():
        return
    for group in list(c10d._world.pg_map):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    aborting = Thread(target=c10d._abort_process_group, daemon=True)
    aborting.start()
    aborting.join(seconds)


def check_installed(*packages: str) -> None:
    """Raise `LaunchError`, with the command that installs it, for a missing package."""
    for package in packages:
        if find_spec(package) is None:
            raise LaunchError(
                f"training: expected the package {package}, found none: "
                "run pip install 'primepar[torch]'"
            )


def _alone(launch: Launch) -> _Place:
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    return _Place(0, 1, 0, HashStore())


def _load_mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"mpirun: expected mpi4py to find its MPI, got {' '.join(str(error).split())}: "
            "run pip install 'primepar[torch]'"
        ) from None
    return MPI


def _by_mpi(launch: Launch) -> _Place:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    mpi = _load_mpi()
    world = mpi.COMM_WORLD
    if world.size != launch.size:
        library = mpi.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")
        raise LaunchError(
            f"mpirun: expected {launch.size} processes to meet, got {world.size}: this mpirun does "
            f"not belong to mpi4py's MPI ({library}); start with the mpirun next to python, or "
            f"with primepar train --ranks {launch.size}"
        )
    local = world.Split_type(mpi.COMM_TYPE_SHARED)
    place = (world.rank, world.size, local.rank)
    one_machine = world.allreduce(int(local.size == world.size), op=mpi.MIN)
    host = "127.0.0.1" if one_machine else mpi.Get_processor_name()
    server = TCPStore(host, 0, is_master=True, wait_for_workers=False) if world.rank == 0 else None
    host, port = world.bcast((host, server.port) if server else None)
    store = server or TCPStore(host, port)
    world.Barrier()
    # Finalize now: a process that fails later must not wait in MPI_Finalize for the others.
    mpi.Finalize()
    return _Place(*place, store)


def _by_file(launch: Launch) -> _Place:
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    store = FileStore(os.environ[STORE], launch.size)
    return _Place(launch.rank, launch.size, launch.rank, store)


def _by_torchrun(launch: Launch) -> _Place:
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", launch.rank, launch.size))
    return _Place(launch.rank, launch.size, int(os.environ["LOCAL_RANK"]), store)


_MEET: dict[Launcher, Callable[[Launch], _Place]] = {
    "alone": _alone,
    "mpirun": _by_mpi,
    "torchrun": _by_torchrun,
    "local": _by_file,
}
