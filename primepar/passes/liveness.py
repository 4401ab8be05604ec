"""Liveness: the number of live elements on a rank, instruction by instruction.

A block is live from the instruction that makes it to the one that frees it. A received block is
live from its post, because its memory is in use from there. Example: `recv a (4 elements);
compute b (2) from a; free a` has the live elements 4, 6, 2, so its peak is 6.
"""

from __future__ import annotations

from functools import cache

from primepar.passes.block_uses import Size
from primepar.schedule.ledger import peak
from primepar.schedule.meaning import meaning_of
from primepar.schedule.program import Program
from primepar.schedule.sharing import shared

ROUNDS = "master.update"
"""The kernel that rounds a wide copy of a parameter to its short type."""


@shared("tensors", "phases", "grid", "shape")
def sizes_of(program: Program) -> Size:
    """Return the function from a block to its number of elements; None if it is unknown."""
    return cache(meaning_of(program).elements)


@shared("tensors", "phases", "grid", "shape")
def live_sizes(program: Program) -> Size:
    """Return the function from a block to what it takes while it is live, in elements.

    In a step of a short type, which rounds wide copies of the parameters, a wide element takes as
    much as two others. So what raises no peak of these raises none of bytes.
    """
    size, tensors = sizes_of(program), program.tensors or {}
    kernels = {signature.kernel for signature in (program.phases or {}).values()}
    if ROUNDS not in kernels:
        return size
    wide = {name for name, tensor in tensors.items() if tensor.wide}

    @cache
    def weighed(name: str) -> int | None:
        elements = size(name)
        # float32 next to bfloat16: one wide element is two of the others.
        doubled = name.rstrip("'").rpartition("[")[0] in wide
        return elements if elements is None else elements * (1 + doubled)

    return weighed


def peaks(program: Program) -> list[int]:
    """Return the peak of live elements on every rank; blocks of unknown size count as zero."""
    size = sizes_of(program)
    return [peak(program, rank, lambda name: size(name) or 0) for rank in range(program.ranks)]
