"""Chunks: tensors packed into pieces of one capacity, and which tensors of a program are states.

Source: PatrickStar (Fang et al., TPDS 2022) and its code, `patrickstar/core`. Capacities are in
elements. Tensors are packed in the order of their creation: a tensor that does not fit into the
last chunk begins a new one. Example: capacity 10 and tensors of 4, 5, 3 elements give the chunks
(4, 5) and (3,), and one element of the first is not used.

A state is a tensor that a program begins and ends with, under its own name or as `NAME.new`. What
an optimizer keeps of a parameter NAME are states `NAME.SUFFIX`, such as AdamW's moments. Its
gradient is `NAME.grad`. An updated block takes the place of the old one in its chunk. Gradients,
and the states of each suffix, have chunks of their own, in the layout of the parameters.

The search for a capacity is PatrickStar's `eval_chunk_size.py`: for each candidate the layout is
built without any data. A candidate is valid if two of its chunks fit on the device while the first
step is recorded, and if all chunks of all states fit on device and host together. PatrickStar
prints the candidates, and its user chooses. Here the valid one with the least unused memory is
taken, and of equal ones the smallest: this rule is ours.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from fractions import Fraction
from itertools import chain

from msgspec import Struct

from primepar.errors import MemoryLimitError
from primepar.passes.liveness import sizes_of
from primepar.schedule.effects import host_blocks, initial_blocks
from primepar.schedule.program import Program

COPIES = 4
"""Copies of the layout: parameters, gradients and two moments."""
NEW, GRADIENT = ".new", ".grad"
Chunks = Mapping[str, str]
"""Block -> name of its chunk, `weight 3` or `m 0`."""


class ChunkLayout(Struct, frozen=True, kw_only=True):
    """Which tensors are in which chunk, in the order of their creation."""

    capacity: int
    """Elements of a chunk."""
    chunks: tuple[tuple[str, ...], ...]
    sizes: dict[str, int]
    """Tensor -> elements."""

    @property
    def places(self) -> dict[str, int]:
        """Tensor -> number of its chunk."""
        return {name: chunk for chunk, names in enumerate(self.chunks) for name in names}

    @property
    def elements(self) -> int:
        """Elements of all chunks, with what is not used."""
        return self.capacity * len(self.chunks)

    @property
    def utilisation(self) -> Fraction:
        """Share of the chunks that tensors fill."""
        return Fraction(sum(self.sizes.values()), max(1, self.elements))

    def group(self, chunk: int, ranks: int) -> range:
        """Return the chunks that are gathered together: `ranks` consecutive ones."""
        first = chunk - chunk % ranks
        return range(first, min(first + ranks, len(self.chunks)))


def packed(sizes: Mapping[str, int], capacity: int) -> ChunkLayout:
    """Pack tensors of these sizes in order into chunks of `capacity` elements.

    Raises `MemoryLimitError` for a tensor that is larger than a chunk.
    """
    chunks: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if size > capacity:
            largest = max(sizes, key=sizes.__getitem__)
            raise MemoryLimitError(
                f"chunk: expected at least the {sizes[largest]} elements of the largest tensor, "
                f"{largest}, got {capacity}: take {sizes[largest]} or more"
            )
        # PatrickStar never looks back: what is left in the last chunk stays unused.
        if size > room:
            chunks.append([])
            room = capacity
        chunks[-1].append(name)
        room -= size
    return ChunkLayout(capacity=capacity, chunks=tuple(map(tuple, chunks)), sizes=dict(sizes))


# The search for a capacity


class ChunkSize(Struct, frozen=True, kw_only=True):
    """One candidate, with the layout of the parameters."""

    layout: ChunkLayout
    valid: bool
    """Whether the chunks fit the memory."""

    @property
    def waste(self) -> int:
        """Elements of the chunks of the parameters that no tensor uses."""
        return self.layout.elements - sum(self.layout.sizes.values())


def candidates(sizes: Mapping[str, int], interval: int) -> range:
    """Return multiples of `interval`, from the largest tensor to all tensors together."""
    largest, total = max(sizes.values()), sum(sizes.values())
    first = -(-largest // interval) * interval
    return range(first, max(first, -(-total // interval) * interval) + 1, interval)


def chunk_sizes(
    sizes: Mapping[str, int], capacities: Iterable[int], device: int, host: int | None = None
) -> list[ChunkSize]:
    """Return every candidate with its layout.

    `device` and `host` are the elements that fit there; a host without a number has enough.
    """
    sized = []
    for capacity in capacities:
        layout = packed(sizes, capacity)
        # Four copies of the layout are somewhere: what is not on the device is on the host.
        fits = host is None or COPIES * layout.elements <= device + host
        # Two chunks at least, or none could come while another is in use.
        sized.append(ChunkSize(layout=layout, valid=fits and 2 * capacity <= device))
    return sized


def best_chunk_size(
    sizes: Mapping[str, int], device: int, host: int | None = None, interval: int = 1
) -> ChunkSize:
    """Return the valid candidate with the least unused memory; of equal ones the smallest.

    Raises `MemoryLimitError` if none is valid, with the least device memory that has one.
    """
    known = chunk_sizes(sizes, candidates(sizes, interval), device, host)
    valid = [candidate for candidate in known if candidate.valid]
    if not valid:
        least = known[0].layout
        raise MemoryLimitError(
            f"memory: expected at least {2 * least.capacity} elements on the device, two chunks "
            f"of the largest tensor, and {COPIES * least.elements} with the host, got {device}"
            f"{'' if host is None else f' and {host}'}: allow more"
        )
    return min(valid, key=lambda candidate: (candidate.waste, candidate.layout.capacity))


# The chunks of a program


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
        # Chunk 3 of the parameters has the same tensors as chunk 3 of the moments, so an update
        # needs one chunk of each kind.
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
