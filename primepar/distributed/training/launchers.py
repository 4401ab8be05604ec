"""Which launcher started this process, from the variables that it left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from primepar.distributed.training.agreement import GRACE_SECONDS
from primepar.errors import PrimeParError

Launcher = Literal["alone", "mpirun", "torchrun", "local"]

_MPI = {"OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE"}
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
RANK, RANKS, STORE = LOCAL = ("PRIMEPAR_RANK", "PRIMEPAR_RANKS", "PRIMEPAR_STORE")
"""Variables of a process that `--ranks` starts without MPI; the last is the file to meet in."""


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
