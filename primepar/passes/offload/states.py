"""Which blocks of a step are states: parameters, gradients and moments, and their chunks.

A state is a tensor that a program begins and ends with, under its own name or as `NAME.new`. Its
gradient is `NAME.grad`. An updated block takes the place of the old one in its chunk. Gradients
and both moments have chunks of their own, in the layout of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from primepar.passes.liveness import sizes_of
from primepar.passes.offload.chunks import packed
from primepar.schedule.program import Program
from primepar.schedule.program_uses import host_blocks, initial_blocks

NEW, GRADIENT = ".new", ".grad"
MOMENTS = (".m", ".v")
Chunks = Mapping[str, str]
"""Block -> name of its chunk, `weight 3` or `m 0`."""


def state_chunks(program: Program, capacity: int) -> tuple[Chunks, ...]:
    """Return for every rank the chunks of its states' blocks.

    Raises `MemoryLimitError` for a block that is larger than a chunk.
    """
    size, ends = sizes_of(program), _ends(program)
    given = zip(initial_blocks(program), host_blocks(program), strict=True)
    return tuple(
        _chunks({name: size(name) or 0 for name in (*here, *host) if _kept(name, ends)}, capacity)
        for here, host in given
    )


def largest_state(program: Program) -> int:
    """Return the elements of the largest block of a state, over all ranks; 1 without states."""
    size, ends = sizes_of(program), _ends(program)
    given = zip(initial_blocks(program), host_blocks(program), strict=True)
    names = {name for pair in given for name in chain(*pair) if _kept(name, ends)}
    return max((size(name) or 0 for name in names), default=1)


def _ends(program: Program) -> set[str]:
    """Return the tensors that a program ends with."""
    return set(map(_tensor, chain(*(program.final or ()), *(program.host_final or ()))))


def _tensor(block: str) -> str:
    return block.rpartition("[")[0]


def _kept(block: str, ends: set[str]) -> bool:
    return not ends.isdisjoint({_tensor(block), _tensor(block) + NEW})


def _chunks(sizes: Mapping[str, int], capacity: int) -> Chunks:
    """Pack the parameters in order; their moments and gradients have the same places."""
    moments = {_renamed(name, moment): moment for name in sizes for moment in MOMENTS}
    layout = packed({name: n for name, n in sizes.items() if name not in moments}, capacity)
    chunks: dict[str, str] = {}
    for name, number in layout.places.items():
        chunks[_renamed(name, GRADIENT)] = f"gradient {number}"
        for state in ("", *MOMENTS):
            held = _renamed(name, state)
            kind = state.removeprefix(".") or "parameter"
            chunks[held] = chunks[_renamed(held, NEW)] = f"{kind} {number}"
    return chunks


def _renamed(block: str, suffix: str) -> str:
    tensor, _, index = block.rpartition("[")
    return f"{tensor}{suffix}[{index}"
