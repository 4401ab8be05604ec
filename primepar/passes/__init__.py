"""Passes: program to program, applied before proof, emulation, simulation and execution.

So all readers get the same list. The result of a pass is proved like any other program: a pass that
breaks a program is refuted there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from primepar.errors import ProgramError
from primepar.passes.free_early import free_early
from primepar.passes.merge_collectives import merge_collectives
from primepar.passes.merge_products import merge_products
from primepar.passes.overlap import overlap
from primepar.schedule.program import Program

PASSES: Mapping[str, Callable[[Program], Program]] = {
    "free-early": free_early,
    "merge-products": merge_products,
    "merge-collectives": merge_collectives,
    "overlap": overlap,
}
"""Name -> pass, in the order in which they are applied."""


def apply(program: Program, names: Iterable[str] = tuple(PASSES)) -> Program:
    """Return the program after the named passes, in the order of `PASSES`.

    Raises `ProgramError` for an unknown name.
    """
    asked = set(names)
    for name in sorted(asked - PASSES.keys()):
        raise ProgramError(f"passes: expected names out of {', '.join(PASSES)}, got {name!r}")
    for name, run in PASSES.items():
        program = run(program) if name in asked else program
    return program


__all__ = ["PASSES", "apply", "free_early", "merge_collectives", "merge_products", "overlap"]
