"""Which launcher started this process, and how the processes of a run meet.

The variables that a launcher left name it. Each process learns its rank, and all share a key-value
store. Under mpirun, mpi4py gives rank, size and local rank. Rank 0 opens the store on a free port
and broadcasts it, so no port has to be configured. MPI is then finalized; gloo or NCCL do the rest.
Without MPI the processes that `--ranks` starts meet in a file. Under srun they need no MPI either:
rank 0 opens the store on the first machine of the step, on a port that follows from the job.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from primepar.distributed.training.failures import GRACE_SECONDS
from primepar.errors import LaunchError, PrimeParError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

Launcher = Literal["alone", "mpirun", "torchrun", "srun", "local"]

RANK, RANKS, STORE = LOCAL = ("PRIMEPAR_RANK", "PRIMEPAR_RANKS", "PRIMEPAR_STORE")
"""Variables of a process that `--ranks` starts without MPI; the last is the file to meet in."""
_MARKS: tuple[tuple[Launcher, tuple[str, str], tuple[str, ...]], ...] = (
    ("local", (RANK, RANKS), (STORE,)),
    ("torchrun", ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")),
    ("mpirun", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ()),
    ("mpirun", ("PMI_RANK", "PMI_SIZE"), ("MPI_LOCALRANKID",)),
    ("srun", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("SLURM_STEP_NODELIST",)),
    ("mpirun", ("PMI_RANK", "PMI_SIZE"), ()),
)
"""Launcher, its variables of rank and size, and others that must be there; the first match counts.

Under mpirun inside of a SLURM job there are the variables of both. A batch script of SLURM has
`SLURM_PROCID` too, but none of a step.
"""
_UNKNOWN = ("PMI_RANK", "PMIX_RANK", "FLUX_TASK_RANK")
"""Variables of processes of other launchers."""


@dataclass(frozen=True)
class Launch:
    """What the environment variables state about the processes, before the rendezvous."""

    launcher: Launcher
    rank: int
    size: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch:
        """Read the variables that mpirun (Open MPI, MPICH), torchrun, srun or `--ranks` set.

        Raises `LaunchError` for those of another launcher, whose processes would each train alone.
        """
        for launcher, (rank, size), others in _MARKS:
            if all(name in environment for name in (rank, size, *others)):
                return cls(launcher, int(environment[rank]), int(environment[size]))
        for name in _UNKNOWN:
            if name in environment:
                raise LaunchError(
                    "launcher: expected mpirun, torchrun, srun or --ranks, got a process of "
                    f"another one ({name}={environment[name]}): start all processes with one of "
                    "these"
                )
        return cls("alone", 0, 1)

    def check_alone(self, ranks: int | None) -> None:
        """Raise `LaunchError` for `--ranks` in a process that a launcher started."""
        if ranks is not None and self.launcher != "alone":
            raise LaunchError(
                f"--ranks: expected a process started alone, got one of {self.size} that "
                f"{self.launcher} started: leave --ranks out"
            )

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


FIRST_PORT, PORTS, PORTS_OF_A_JOB = 20000, 10000, 7
"""Below the ports that Linux gives to those who ask for any; the steps of a job have neighbours."""


@dataclass(frozen=True)
class WorldPlace:
    """Rank and size in the world, the rank on this machine, and the rendezvous store."""

    rank: int
    size: int
    local_rank: int
    store: Store

    @property
    def reports_alone(self) -> bool:
        """Whether this rank reports a failure if the store is gone.

        Rank 0 is, or was, where the store is. So rank 1 reports, and on every machine that these
        two are not on the first rank, for its machine may have lost the others.
        """
        return self.rank == 1 or (self.rank > 1 and self.local_rank == 0)


def _alone(launch: Launch) -> WorldPlace:
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    return WorldPlace(0, 1, 0, HashStore())


def _load_mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"mpirun: expected mpi4py to find its MPI, got {' '.join(str(error).split())}: "
            "run pip install 'primepar[torch]'"
        ) from None
    return MPI


def _by_mpi(launch: Launch) -> WorldPlace:
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
    return WorldPlace(*place, store)


def _by_file(launch: Launch) -> WorldPlace:
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    store = FileStore(os.environ[STORE], launch.size)
    return WorldPlace(launch.rank, launch.size, launch.rank, store)


def _by_torchrun(launch: Launch) -> WorldPlace:
    from torch.distributed.rendezvous import rendezvous

    given = os.environ
    with _meeting("torchrun", given["MASTER_ADDR"], given["MASTER_PORT"]):
        store, _, _ = next(rendezvous("env://", launch.rank, launch.size))
    return WorldPlace(launch.rank, launch.size, int(given.get("LOCAL_RANK", launch.rank)), store)


def _by_srun(launch: Launch) -> WorldPlace:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = first_host(os.environ["SLURM_STEP_NODELIST"]), srun_port(os.environ)
    with _meeting("srun", host, str(port)):
        store = TCPStore(host, port, is_master=launch.rank == 0, wait_for_workers=False)
    return WorldPlace(launch.rank, launch.size, int(os.environ["SLURM_LOCALID"]), store)


def first_host(nodes: str) -> str:
    """Return the first of SLURM's list of machines: `gpu07` of `gpu[07-09,11],login`."""
    first = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    return "" if first is None else f"{first[1]}{first[2] or ''}{first[3]}"


def srun_port(environment: Mapping[str, str]) -> int:
    """Return `MASTER_PORT`, or a port of the job's step: the same one on all its processes."""
    if "MASTER_PORT" in environment:
        return int(environment["MASTER_PORT"])
    job, step = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_STEP_ID"])
    return FIRST_PORT + (PORTS_OF_A_JOB * job + step) % PORTS


@contextmanager
def _meeting(launcher: str, host: str, port: str) -> Iterator[None]:
    """Report in one line that the processes cannot meet at an address."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        used = "address already in use" in text
        raise LaunchError(
            f"{launcher}: expected the processes to meet at {host}, port {port}, got "
            f"{'an address that is in use' if used else text.partition('. ')[0]}: "
            "set MASTER_PORT to a free port of that machine"
        ) from None


def meet(launch: Launch) -> WorldPlace:
    """Return the place of this process in the world, after all have met.

    Raises `LaunchError` if the launcher's MPI is not that of mpi4py, or if they cannot meet.
    """
    return _MEET[launch.launcher](launch)


_MEET: dict[Launcher, Callable[[Launch], WorldPlace]] = {
    "alone": _alone,
    "mpirun": _by_mpi,
    "torchrun": _by_torchrun,
    "srun": _by_srun,
    "local": _by_file,
}
