"""Who starts the processes, and how they find one another: mpirun, torchrun, or one process alone.

mpirun gives rank, size and local rank through mpi4py; rank 0 opens the rendezvous on a free port
and broadcasts it, so no port is chosen beforehand. Then MPI is left: gloo or NCCL does the rest.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from primepar.distributed.training.settings import DeviceChoice
from primepar.errors import LaunchError, PrimeParError

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

Launcher = Literal["alone", "mpirun", "torchrun"]

_MPI = {"OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE"}
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
GRACE_SECONDS = 10.0
"""How long a rank above 0 waits for rank 0 to speak first and the launcher to end the job."""


@dataclass(frozen=True)
class Launch:
    """What the environment claims about the processes, before they have met."""

    launcher: Launcher
    rank: int
    size: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch:
        """Read what mpirun (Open MPI, MPICH) or torchrun left in the environment."""
        if all(name in environment for name in _TORCHRUN):
            return cls("torchrun", int(environment["RANK"]), int(environment["WORLD_SIZE"]))
        for rank, size in _MPI.items():
            if rank in environment and size in environment:
                return cls("mpirun", int(environment[rank]), int(environment[size]))
        return cls("alone", 0, 1)

    @contextmanager
    def one_voice(self) -> Iterator[None]:
        """Let one rank speak about an error that every rank meets alike.

        Rank 0 raises at once, and its exit makes the launcher end the others. A rank above 0
        raises only if that has not happened, so an error of its own is neither lost nor a hang.
        """
        try:
            yield
        except PrimeParError:
            if self.rank > 0:
                time.sleep(GRACE_SECONDS)
            raise


@dataclass(frozen=True)
class World:
    """The processes that have met; `store` is a key-value store that they share."""

    rank: int
    size: int
    device: torch.device
    store: Store

    @contextmanager
    def agreement(self, name: str) -> Iterator[None]:
        """Run a part of the setup on every rank, and go on only if none of them failed.

        The lowest rank that failed raises its error, the others end without a word.
        """
        error: PrimeParError | None = None
        try:
            yield
        except PrimeParError as raised:
            error = raised
        self.store.set(f"{name}/{self.rank}", "failed" if error else "done")
        answers = [self.store.get(f"{name}/{rank}") for rank in range(self.size)]
        failed = [rank for rank, answer in enumerate(answers) if answer == b"failed"]
        if failed:
            self._wait_for_all(name)
        if error is not None and failed[0] == self.rank:
            raise error
        if failed:
            raise SystemExit(0)

    def _wait_for_all(self, name: str) -> None:
        """Keep rank 0 and its store alive until every rank has read the answers."""
        self.store.set(f"{name}/{self.rank}/read", "")
        for rank in range(self.size if self.rank == 0 else 0):
            self.store.get(f"{name}/{rank}/read")


@dataclass(frozen=True)
class _Place:
    """One process among all and among those of its machine, with the rendezvous."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    store: Store


@contextmanager
def joined(launch: Launch, choice: DeviceChoice) -> Iterator[World]:
    """Let the processes meet, and take the process group down at the end.

    Raises `LaunchError` if the launcher's MPI is not mpi4py's, or a process has no device.
    """
    from torch import distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    with launch.one_voice():
        place = _MEET[launch.launcher](launch)
        device = pick_device(choice, place.local_rank, place.local_size)
    if launch.launcher != "alone":
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=place.store,
            rank=place.rank,
            world_size=place.size,
            device_id=device if device.type == "cuda" else None,
        )
    try:
        yield World(place.rank, place.size, device, PrefixStore("primepar", place.store))
    finally:
        # A group lives, threads and all, while a mesh holds it; they must not outlive Python.
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()


def check_installed(*packages: str) -> None:
    """Raise `LaunchError`, with the line that installs it, for a package that is not there."""
    for package in packages:
        if find_spec(package) is None:
            raise LaunchError(
                f"training: expected the package {package}, found none: "
                "run pip install 'primepar[torch]'"
            )


def _alone(launch: Launch) -> _Place:
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    return _Place(0, 1, 0, 1, HashStore())


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
            f"not belong to mpi4py's MPI ({library}); start with the mpirun beside python, or with "
            f"primepar train --ranks {launch.size}"
        )
    local = world.Split_type(mpi.COMM_TYPE_SHARED)
    place = (world.rank, world.size, local.rank, local.size)
    one_machine = world.allreduce(int(local.size == world.size), op=mpi.MIN)
    host = "127.0.0.1" if one_machine else mpi.Get_processor_name()
    own = TCPStore(host, 0, is_master=True, wait_for_workers=False) if world.rank == 0 else None
    host, port = world.bcast((host, own.port) if own else None)
    store = own or TCPStore(host, port)
    world.Barrier()
    # A process that fails later must not wait in MPI_Finalize for those that go on.
    mpi.Finalize()
    return _Place(*place, store)


def _by_torchrun(launch: Launch) -> _Place:
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", launch.rank, launch.size))
    local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return _Place(launch.rank, launch.size, *local, store)


_MEET: dict[Launcher, Callable[[Launch], _Place]] = {
    "alone": _alone,
    "mpirun": _by_mpi,
    "torchrun": _by_torchrun,
}


def pick_device(choice: DeviceChoice, local_rank: int, local_size: int) -> torch.device:
    """Device of a process: one GPU each where there is CUDA, else the CPU. Raises `LaunchError`."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "cpu" or (choice == "auto" and gpus == 0):
        return torch.device("cpu")
    if gpus < local_size:
        raise LaunchError(
            f"device: expected a GPU for each of {local_size} processes on this machine, "
            f"got {gpus}: start {gpus or 'no'} processes here, or add --device cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
