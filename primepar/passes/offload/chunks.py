"""Chunks: tensors packed into pieces of one capacity, and the states that decide what may move.

Source: PatrickStar (Fang et al., TPDS 2022) and its code, `patrickstar/core`. Capacities are in
elements. Tensors are packed in the order of their creation: a tensor that does not fit into the
last chunk begins a new one. Example: capacity 10 and tensors of 4, 5, 3 elements give the chunks
(4, 5) and (3,), and one element of the first is not used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from fractions import Fraction

from msgspec import Struct

from primepar.errors import MemoryLimitError


class TensorState(Enum):
    """What a tensor is used for at a moment of a training step."""

    FREE = "free"
    """It has no data: before its first use, or after its last one."""
    COMPUTE = "compute"
    """An instruction that runs or is in flight uses it."""
    HOLD = "hold"
    HOLD_AFTER_FWD = "hold after forward"
    HOLD_AFTER_BWD = "hold after backward"


class ChunkState(Enum):
    """The state of a chunk, which follows from the states of its tensors."""

    RELEASED = "released"
    """It has no memory here: its data is on another rank."""
    FREE = "free"
    COMPUTE = "compute"
    """It cannot move."""
    HOLD = "hold"
    HOLD_AFTER_FWD = "hold after forward"
    HOLD_AFTER_BWD = "hold after backward"

    @property
    def moves(self) -> bool:
        """Whether the chunk may be evicted: it has data, and nothing uses it now."""
        return self in (ChunkState.HOLD, ChunkState.HOLD_AFTER_FWD, ChunkState.HOLD_AFTER_BWD)


_ORDER = (
    TensorState.COMPUTE,
    TensorState.HOLD,
    TensorState.HOLD_AFTER_FWD,
    TensorState.HOLD_AFTER_BWD,
)


def chunk_state(tensors: Collection[TensorState], *, released: bool = False) -> ChunkState:
    """Return the state of a chunk: the first of COMPUTE, HOLD and the rest that a tensor has.

    So a chunk is HOLD_AFTER_FWD only when forward needs none of its tensors any more. A `released`
    chunk has no memory here.
    """
    if released:
        return ChunkState.RELEASED
    first = next((state for state in _ORDER if state in tensors), TensorState.FREE)
    return ChunkState[first.name]


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
        if size > room:
            chunks.append([])
            room = capacity
        chunks[-1].append(name)
        room -= size
    return ChunkLayout(capacity=capacity, chunks=tuple(map(tuple, chunks)), sizes=dict(sizes))
