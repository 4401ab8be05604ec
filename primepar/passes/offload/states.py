"""Which blocks of a step are states: parameters, gradients and moments, and their chunks.

A state is a tensor that a program begins and ends with, under its own name or as `NAME.new`. What
an optimizer keeps of a parameter NAME are states `NAME.SUFFIX`, such as AdamW's moments. Its
gradient is `NAME.grad`. An updated block takes the place of the old one in its chunk. Gradients,
and the states of each suffix, have chunks of their own, in the layout of the parameters.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import chain

from primepar.passes.liveness import sizes_of
from primepar.passes.offload.chunks import packed
from primepar.schedule.program import Program
from primepar.schedule.program_uses import host_blocks, initial_blocks

NEW, GRADIENT = ".new", ".grad"
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
    """Pack the parameters in order; what is kept of them, and gradients, have the same places."""
    suffixes = {name: _suffix(name, sizes) for name in sizes}
    parameters = {name: size for name, size in sizes.items() if not suffixes[name]}
    chunks: dict[str, str] = {}
    for name, number in packed(parameters, capacity).places.items():
        chunks[_renamed(name, GRADIENT)] = f"gradient {number}"
        for suffix in dict.fromkeys(("", *suffixes.values())):
            held = _renamed(name, suffix)
            kind = suffix.removeprefix(".") or "parameter"
            chunks[held] = chunks[_renamed(held, NEW)] = f"{kind} {number}"
    return chunks


def _suffix(block: str, states: Container[str]) -> str:
    """Return the last word of a state that is kept of a parameter, `.m`; "" for a parameter."""
    parameter, dot, word = _tensor(block).rpartition(".")
    return dot + word if parameter + block.removeprefix(_tensor(block)) in states else ""


def _renamed(block: str, suffix: str) -> str:
    tensor, _, index = block.rpartition("[")
    return f"{tensor}{suffix}[{index}"
