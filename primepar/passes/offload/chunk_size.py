"""The search for a chunk size: which capacities fit the memory, and how much of them is used.

Source: PatrickStar's `eval_chunk_size.py`. For each candidate the layout is built without any
data. A candidate is valid if two of its chunks fit on the device while the first step is recorded,
and if all chunks of all states fit on device and host together. PatrickStar prints the candidates,
and its user chooses. Here the valid one with the least unused memory is taken, and of equal ones
the smallest: this rule is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from primepar.errors import MemoryLimitError
from primepar.passes.offload.chunks import ChunkLayout, packed

STATES = 4
"""Copies of the layout: parameters, gradients and two moments."""


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
        fits = host is None or STATES * layout.elements <= device + host
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
            f"of the largest tensor, and {STATES * least.elements} with the host, got {device}"
            f"{'' if host is None else f' and {host}'}: allow more"
        )
    return min(valid, key=lambda candidate: (candidate.waste, candidate.layout.capacity))
