"""Names of the buffers that a rank communicates, and what their contents depend on.

A storage is known by its address while it lives. What an operation allocates is a new storage, even
at the address of a freed one. Two parts of one storage have names of their own: `x3` and `x3@64`,
the part 64 bytes further on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch

from primepar.schedule.program import Compute

NOTHING: frozenset[str] = frozenset()


@dataclass(slots=True)
class Contents:
    """What a storage holds: the received blocks that it depends on.

    `unknown` tells that some of these came without their values, so that it holds other numbers
    here than in a run on all ranks.
    """

    depends: frozenset[str] = NOTHING
    unknown: bool = False


class InFlight(Protocol):
    """What is posted and not yet waited for."""

    waits_itself: bool
    """Whether the library waits for it before anybody accesses its buffers."""

    def finish(self) -> None:
        """Wait for it."""


class Flight(NamedTuple):
    """A buffer between a post and its wait."""

    block: str
    first: int
    end: int
    """Its bytes in the storage, `first <= byte < end`."""
    receives: bool
    """Whether it may change meanwhile."""
    work: InFlight


class BufferTable:
    """The storages of one rank."""

    def __init__(self) -> None:
        self._names: dict[int, int] = {}
        self._contents: dict[int, Contents] = {}
        self.flights: dict[int, list[Flight]] = {}
        self._count = 0

    def allocated(self, tensor: torch.Tensor) -> None:
        """Forget what was at the address of a new storage."""
        storage = storage_id(tensor)
        self._names.pop(storage, None)
        self._contents.pop(storage, None)

    def name(self, tensor: torch.Tensor) -> str:
        """The name of a buffer."""
        storage = storage_id(tensor)
        number = self._names.get(storage)
        if number is None:
            number = self._names[storage] = self._count
            self._count += 1
        offset, size = tensor.storage_offset() * tensor.element_size(), tensor.nbytes
        whole = offset == 0 and size == tensor.untyped_storage().nbytes()
        return f"x{number}" if whole else f"x{number}@{offset}+{size}"

    def names(self, tensor: torch.Tensor, parts: int) -> tuple[str, ...]:
        """The names of a buffer's equal parts, in order."""
        return tuple(f"{self.name(tensor)}.{part}" for part in range(parts))

    def contents(self, tensor: torch.Tensor) -> Contents:
        """What a tensor's storage depends on."""
        return self._contents.get(storage_id(tensor), _NO_CONTENTS)

    def hold(self, tensor: torch.Tensor, depends: frozenset[str], unknown: bool) -> None:
        """Set what a tensor's storage depends on."""
        storage = storage_id(tensor)
        if depends or unknown:
            self._contents[storage] = Contents(depends, unknown)
        else:
            self._contents.pop(storage, None)

    def mix(self, tensors: Iterable[torch.Tensor]) -> Contents:
        """What is computed of several tensors depends on."""
        depends, unknown = NOTHING, False
        for tensor in tensors:
            contents = self._contents.get(storage_id(tensor))
            if contents is not None:
                depends = union(depends, contents.depends)
                unknown = unknown or contents.unknown
        return Contents(depends, unknown)

    def computed(self, tensor: torch.Tensor, block: str, inherited: Contents | None) -> Compute | None:
        """The computation that made a buffer of received blocks, once, or None."""
        contents = inherited or self.contents(tensor)
        others = contents.depends - {block}
        if not others:
            return None
        self.hold(tensor, frozenset({block}), contents.unknown)
        return Compute(reads=tuple(sorted(others)), accumulates=block)


_NO_CONTENTS = Contents()


@lru_cache(maxsize=4096)
def union(one: frozenset[str], two: frozenset[str]) -> frozenset[str]:
    """Union of two sets; the same few unions are asked for again and again."""
    return one | two


def storage_id(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, also where it has no memory."""
    return int(tensor.untyped_storage()._cdata)
