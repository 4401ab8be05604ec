"""Names of the buffers that a rank communicates, and what their contents depend on.

A storage is known by its address. A weak reference to it keeps the address from being used again,
and shows when it is dead. Two parts of one storage have names of their own: `x3`, and `x3@64+16`
for the 16 bytes that begin 64 bytes further on.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.meaning.storages import NUMPY
from primepar.schedule.program import Compute


class StorageContents(NamedTuple):
    """What a storage holds: the received blocks that it depends on.

    `unknown` means that some of these came without their values, so that it holds other numbers
    here than in a run on all ranks.
    """

    depends: frozenset[str] = frozenset()
    unknown: bool = False


_NO_CONTENTS = StorageContents()


class PostedWork(Protocol):
    """What is posted and not yet waited for."""

    waits_itself: bool
    """Whether the library waits for it before anybody accesses its buffers."""

    def finish(self) -> None:
        """Wait for it."""


class BufferFlight(NamedTuple):
    """A buffer between a post and its wait."""

    tensor: torch.Tensor
    block: str
    first: int
    end: int
    """Its bytes in the storage, `first <= byte < end`."""
    receives: bool
    """Whether it may change meanwhile."""
    work: PostedWork


class _Storage:
    """One storage that communicates, or whose contents depend on what others sent."""

    __slots__ = ("contents", "device", "lineage", "number", "reference")

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.number: int | None = None
        self.contents = _NO_CONTENTS
        self.device: int | None = None
        """The pretended GPU that it is on."""
        self.lineage: int | None = None
        """How it was computed of the rank's own data; 0 is a constant, None is not yet known."""


class BufferTable:
    """The storages of one rank."""

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}
        self.flights: dict[int, list[BufferFlight]] = {}
        self._count = 0
        self._limit = 1024

    def name(self, tensor: torch.Tensor) -> str:
        """The name of a buffer."""
        storage = self._storage(tensor)
        if storage.number is None:
            storage.number = self._count
            self._count += 1
        offset, size = tensor.storage_offset() * tensor.element_size(), tensor.nbytes
        whole = offset == 0 and size == tensor.untyped_storage().nbytes()
        return f"x{storage.number}" if whole else f"x{storage.number}@{offset}+{size}"

    def land(self, work: PostedWork) -> None:
        """Forget the buffers of a work that was waited for."""
        left = {
            key: [flight for flight in flights if flight.work is not work]
            for key, flights in self.flights.items()
        }
        self.flights = {key: flights for key, flights in left.items() if flights}

    def _storage(self, tensor: torch.Tensor) -> _Storage:
        known = self._storages.get(storage_id(tensor))
        if known is None:
            known = self._storages[storage_id(tensor)] = _Storage(tensor)
            if len(self._storages) > self._limit:
                self._forget_dead()
        return known

    def _forget_dead(self) -> None:
        storages = self._storages.items()
        self._storages = {key: kept for key, kept in storages if not kept.reference.expired()}
        self._limit = max(1024, 2 * len(self._storages))

    def names(self, tensor: torch.Tensor, parts: int) -> tuple[str, ...]:
        """The names of a buffer's equal parts, in order."""
        return tuple(f"{self.name(tensor)}.{part}" for part in range(parts))

    def contents(self, tensor: torch.Tensor) -> StorageContents:
        """What a tensor's storage depends on."""
        known = self._storages.get(storage_id(tensor))
        return _NO_CONTENTS if known is None else known.contents

    def hold(self, tensor: torch.Tensor, contents: StorageContents) -> None:
        """Set what a tensor's storage depends on."""
        if contents.depends or storage_id(tensor) in self._storages:
            self._storage(tensor).contents = contents

    def lineage(self, tensor: torch.Tensor) -> int:
        """How a tensor was computed of the rank's own data: 0 for constants.

        Data that came from elsewhere than an operation, such as a loader, are named by what they
        hold. A single number is a constant, as the Python number is that it was made of.
        """
        storage = self._storage(tensor)
        if storage.lineage is None:
            storage.lineage = content_number(tensor)
        if not storage.lineage or _is_whole(tensor):
            return storage.lineage
        place = (tensor.storage_offset(), *tensor.size(), *tensor.stride())
        return hash((storage.lineage, place))

    def derive(self, tensor: torch.Tensor, number: int) -> None:
        """Note how a tensor was computed; with a part of a storage all of it changes."""
        storage = self._storage(tensor)
        if not _is_whole(tensor) and storage.lineage:
            place = (tensor.storage_offset(), *tensor.size(), *tensor.stride())
            number = hash((storage.lineage, number, place))
        storage.lineage = number

    def device(self, tensor: torch.Tensor) -> int | None:
        """The pretended GPU that a tensor is on; None for the CPU."""
        return self.device_of(tensor.untyped_storage())

    def device_of(self, storage: Any) -> int | None:
        """The pretended GPU that a storage is on; None for the CPU."""
        known = self._storages.get(int(storage._cdata))
        return None if known is None else known.device

    def place(self, tensor: torch.Tensor, device: int | None) -> None:
        """Set the pretended GPU that a tensor's storage is on."""
        if device is not None or storage_id(tensor) in self._storages:
            self._storage(tensor).device = device

    def mix(self, tensors: Iterable[torch.Tensor]) -> StorageContents:
        """What a result of several tensors depends on."""
        mixed = _NO_CONTENTS
        for tensor in tensors:
            known = self._storages.get(storage_id(tensor))
            if known is not None and known.contents is not mixed and known.contents.depends:
                mixed = both(mixed, known.contents)
        return mixed

    def computed(
        self, tensor: torch.Tensor, block: str, inherited: StorageContents | None,
        changing: set[str],
    ) -> Compute | None:  # fmt: skip
        """The computation that made a buffer of received blocks, once; None if there is none.

        Blocks that are `changing` by now are left out: they were read before.
        """
        contents = inherited or self.contents(tensor)
        others = contents.depends - {block}
        if not others:
            return None
        self.hold(tensor, StorageContents(frozenset({block}), contents.unknown))
        reads = tuple(sorted(others - changing))
        return Compute(reads=reads, accumulates=block) if reads else None


def content_number(tensor: torch.Tensor) -> int:
    """A number of what a tensor's storage holds; 0 for a single number, or where nothing is."""
    if tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    if length < 2:
        return 0
    with torch.no_grad(), _disable_current_modes():
        flat = tensor.detach().as_strided((length,), (1,), 0)
        return hash(NUMPY(flat.view(torch.uint8)).tobytes())


def _is_whole(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes())


@lru_cache(maxsize=4096)
def both(one: StorageContents, two: StorageContents) -> StorageContents:
    """What depends on both; the same few are asked for again and again."""
    return StorageContents(one.depends | two.depends, one.unknown or two.unknown)


def storage_id(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, also where it has no memory."""
    return int(tensor.untyped_storage()._cdata)


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one after its last."""
    first = int(tensor.storage_offset()) * tensor.element_size()
    return first, first + int(tensor.nbytes)
