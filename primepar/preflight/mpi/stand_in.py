"""The modules that take the place of `mpi4py` and `mpi4py.MPI` in the process of a rank."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from primepar.preflight.mpi.collectives import IN_PLACE, MpiCollectives
from primepar.preflight.mpi.communicators import UNDEFINED, CartComm, Comm, RankGroup
from primepar.preflight.mpi.point_to_point import PROC_NULL
from primepar.preflight.mpi.rank_side import RankSide
from primepar.preflight.mpi.requests import Request, Status
from primepar.preflight.mpi.values import DATATYPES, OPS, Datatype
from primepar.schedule.communicators import WORLD
from primepar.schedule.program import ANY

POSTED = (
    "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall",
    "Alltoallv", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan",
)  # fmt: skip
"""Collectives that have a form with a request: `Ibcast` of `Bcast`."""


def _posted(name: str) -> Any:
    method = getattr(MpiCollectives, name)

    def post(self: MpiCollectives, *arguments: Any, **named: Any) -> Request:
        request: Request = method(self, *arguments, **named, posted=True)
        return request

    return post


for _name in POSTED:
    setattr(MpiCollectives, f"I{_name.lower()}", _posted(_name))


def install(side: RankSide) -> None:
    """Put the stand-ins in the place of the modules."""
    package, module = ModuleType("mpi4py"), _MpiModule("mpi4py.MPI", side)
    package.__dict__.update(
        MPI=module, __path__=[], __version__="4.1.0",
        rc=SimpleNamespace(initialize=True, finalize=True, threads=True), get_config=dict,
    )  # fmt: skip
    sys.modules |= {"mpi4py": package, "mpi4py.MPI": module}


class _MpiModule(ModuleType):
    def __init__(self, name: str, side: RankSide) -> None:
        super().__init__(name)
        self._side = side
        self.__dict__.update(
            ANY_SOURCE=ANY, ANY_TAG=ANY, PROC_NULL=PROC_NULL, UNDEFINED=UNDEFINED,
            IN_PLACE=IN_PLACE, SUCCESS=0, COMM_NULL=None, REQUEST_NULL=Request(None),
            INFO_NULL=None, ERRORS_RETURN=None, ERRORS_ARE_FATAL=None, BSEND_OVERHEAD=0,
            THREAD_SINGLE=0, THREAD_FUNNELED=1, THREAD_SERIALIZED=2, THREAD_MULTIPLE=3,
            COMM_WORLD=Comm(side, WORLD, tuple(range(side.ranks))),
            COMM_SELF=Comm(side, f"self{side.rank}", (side.rank,)),
            Comm=Comm, Intracomm=Comm, Cartcomm=CartComm, Group=RankGroup, Request=Request,
            Prequest=Request, Status=Status, Wtime=time.perf_counter, Wtick=lambda: 1e-9,
            Get_processor_name=lambda: "preflight", Is_initialized=lambda: True,
            Is_finalized=lambda: False, Init=lambda: None, Init_thread=lambda *given: 3,
            Finalize=lambda: None, Query_thread=lambda: 3, Is_thread_main=lambda: True,
            Get_version=lambda: (4, 1), Attach_buffer=lambda buf: None,
            Detach_buffer=lambda: None, Compute_dims=compute_dims,
            **OPS, **{name: Datatype(dtype) for name, dtype in DATATYPES.items()},
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        """Report what is not modelled."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._side.stop(f"uses MPI.{name}, which is not modelled")


def compute_dims(nodes: int, dims: int | Sequence[int]) -> list[int]:
    """Factor a number of ranks into lengths as equal as can be, largest first."""
    shape = [0] * dims if isinstance(dims, int) else list(dims)
    left = nodes
    for length in shape:
        left //= length or 1
    lengths = [1] * shape.count(0)
    for factor in sorted(_prime_factors(left), reverse=True):
        lengths[lengths.index(min(lengths))] *= factor
    open_lengths = iter(sorted(lengths, reverse=True))
    return [length or next(open_lengths) for length in shape]


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors
