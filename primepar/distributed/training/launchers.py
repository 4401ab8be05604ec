"""Which launcher started this process, from the variables that it left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from primepar.distributed.training.agreement import GRACE_SECONDS
from primepar.errors import LaunchError, PrimeParError

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
