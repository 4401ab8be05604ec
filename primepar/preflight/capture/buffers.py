"""Names of the buffers that a rank communicates, and how their contents were computed.

A storage is known by its address. A weak reference to it keeps the address from being used again,
and shows when it is dead. Two parts of one storage have names of their own: `x3`, and `x3@64+16`
for the 16 bytes that begin 64 bytes further on.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.meaning.storages import NUMPY, ByteRange


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
    place: ByteRange
    """Its bytes in the storage."""
    receives: bool
    """Whether it may change meanwhile."""
    work: PostedWork


class _Storage:
    """One storage that communicates, or whose computation is known."""

    __slots__ = ("device", "length", "lineage", "number", "reference")

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.number: int | None = None
        self.device: int | None = None
        """The pretended GPU that it is on."""
        self.lineage: int | None = None
        """How it was computed of the rank's own data; 0 is a constant, None is not yet known."""
        self.length: tuple[int, Any] | None = None
        """The length in its tensors that depends on values, and its mark."""


class BufferTable:
    """The storages of one rank."""

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}
        self.flights: dict[int, list[BufferFlight]] = {}
        self.has_lengths = False
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

    def length(self, tensor: torch.Tensor) -> tuple[int, Any] | None:
        """The length of a tensor that depends on values, and its mark."""
        known = self._storages.get(storage_id(tensor)) if self.has_lengths else None
        length = known.length if known is not None and not known.reference.expired() else None
        return length if length is not None and length[0] in tensor.shape else None

    def sized(self, tensor: torch.Tensor, length: int, mark: Any) -> None:
        """Note that a length of a tensor depends on values."""
        if length in tensor.shape:
            self._storage(tensor).length, self.has_lengths = (length, mark), True

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


def storage_id(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, also where it has no memory."""
    return int(tensor.untyped_storage()._cdata)
