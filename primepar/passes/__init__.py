"""Passes: program to program, applied before proof, emulation, simulation and execution.

So all readers get the same list. The result of a pass is proved like any other program: a pass that
breaks a program is refuted there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from primepar.errors import ProgramError
from primepar.passes.chunk_transfers import ChunkCount, chunk_transfers
from primepar.passes.coalesce_reductions import coalesce_reductions
from primepar.passes.free_early import free_early
from primepar.passes.liveness import peaks
from primepar.passes.make_late import make_late
from primepar.passes.merge_collectives import merge_collectives
from primepar.passes.merge_products import merge_products
from primepar.passes.needed_first import needed_first
from primepar.passes.overlap import overlap
from primepar.passes.partial_sums import partial_sums
from primepar.schedule.program import Program
from primepar.schedule.sharing import sharing
from primepar.schedule.signature import Bound

PASSES: Mapping[str, Callable[[Program], Program]] = {
    "free-early": free_early,
    "merge-products": merge_products,
    "merge-collectives": merge_collectives,
    "coalesce-reductions": coalesce_reductions,
    "make-late": make_late,
    "needed-first": needed_first,
    "partial-sums": partial_sums,
    "overlap": overlap,
}
"""Name -> pass, in the order in which they are applied."""
Chunks = int | ChunkCount | None
"""The number of chunks of `chunk_transfers`, or how it is chosen; None leaves that pass out."""


def apply(program: Program, names: Iterable[str] = tuple(PASSES), chunks: Chunks = None) -> Program:
    """Return the program after the named passes, in the order of `PASSES`.

    With `chunks` transfers are cut into chunks before `needed-first`, `partial-sums` and `overlap`,
    which order them, make messages of sums and post what can travel.
    Raises `ProgramError` for an unknown name.
    """
    asked = set(names)
    for name in sorted(asked - PASSES.keys()):
        raise ProgramError(f"passes: expected names out of {', '.join(PASSES)}, got {name!r}")
    with sharing():
        for name, run in PASSES.items():
            if name == "needed-first" and chunks is not None:
                program = chunk_transfers(program, chunks)
            program = run(program) if name in asked else program
    return program


def apply_in_turn(
    first: Program, second: Program, names: Iterable[str] = tuple(PASSES)
) -> tuple[Program, Program]:
    """Return two programs that run one after the other, after the named passes.

    Both declare the memory that the larger one needs, and may use as much.
    """
    asked = tuple(names)
    most = max(max(peaks(apply(program, asked))) for program in (first, second))
    room = Bound(device=most)
    first, second = (replace(program, memory=room) for program in (first, second))
    return apply(first, asked), apply(second, asked)


__all__ = [
    "PASSES",
    "Chunks",
    "apply",
    "apply_in_turn",
    "chunk_transfers",
    "coalesce_reductions",
    "free_early",
    "make_late",
    "merge_collectives",
    "merge_products",
    "needed_first",
    "overlap",
    "partial_sums",
]
