"""Which terms the storages of one rank hold, byte range by byte range.

A bucket of gradients, for example, is one storage whose parts hold the terms of several gradients.
A range without a term holds data that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import torch
from msgspec.structs import replace
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.meaning.terms import Applied, Joined, Leaf, Received, Term, inputs_of

NUMPY = torch.Tensor.numpy
"""As it was before a script's reads are watched: what is read for a term decides nothing."""


class Held(NamedTuple):
    """Bytes of a storage that hold a term, from its first element on."""

    start: int
    end: int
    node: int
    first: int
    """The element of the term at `start`."""


class Dependence(NamedTuple):
    """What a term depends on: received blocks.

    `unknown` means that some of these came without their values, so that it is another number here
    than in a run on all ranks.
    """

    blocks: frozenset[str] = frozenset()
    unknown: bool = False


def both(several: Iterable[Dependence]) -> Dependence:
    """What depends on all of several."""
    mixed = Dependence()
    for one in several:
        if one is not mixed and one.blocks:
            mixed = _both(mixed, one)
    return mixed


@lru_cache(maxsize=4096)
def _both(one: Dependence, two: Dependence) -> Dependence:
    """The same few are asked for again and again."""
    return Dependence(one.blocks | two.blocks, one.unknown or two.unknown)


class ByteRange(NamedTuple):
    """The bytes of a storage between the first and the last element of a tensor."""

    start: int
    end: int


def byte_range(tensor: torch.Tensor) -> ByteRange:
    """The bytes that a tensor spans; a tensor without elements spans none."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if not tensor.numel():
        return ByteRange(int(start), int(start))
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    last = sum((length - 1) * stride for length, stride in pairs)
    return ByteRange(int(start), int(start + (last + 1) * size))


def is_there(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor was not freed."""
    return byte_range(tensor).end <= tensor.untyped_storage().nbytes()


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor within a wrapper, such as a rank's own part of a DTensor, else itself."""
    while is_functorch_wrapped_tensor(tensor):  # of torch.vmap
        tensor = get_unwrapped(tensor)
    for name in ("_local_tensor", "elem"):
        inner = getattr(tensor, name, None) if type(tensor) is not torch.Tensor else None
        if isinstance(inner, torch.Tensor):
            return local_part(inner)
    return tensor


def span(tensor: torch.Tensor) -> int:
    """Elements between the first and the last one of a tensor, both included."""
    start, end = byte_range(tensor)
    return (end - start) // tensor.element_size()


def content(tensor: torch.Tensor) -> Leaf:
    """The name of data that is there: of all elements that the tensor spans."""
    # A copy, as a storage that NumPy shares can no longer be resized, which FSDP does.
    with _disable_current_modes():
        flat = tensor.detach().as_strided((span(tensor),), (1,)).clone()
        data = NUMPY(flat.view(torch.uint8)).tobytes()
        constant = bool((flat == flat[:1]).all()) if flat.numel() else True
    digest = sha256(f"{tensor.dtype}".encode() + data).hexdigest()[:32]
    return Leaf(digest, flat.numel(), constant)


class Storages:
    """The terms of all storages of one rank."""

    def __init__(self) -> None:
        self.nodes: list[Term] = []
        self.depends: list[Dependence] = []
        """What each term depends on."""
        self._numbers: dict[Term, int] = {}
        self._held: dict[int, tuple[StorageWeakRef, list[Held]]] = {}
        """Address of a storage -> a reference that keeps the address from being used again."""

    def add(self, node: Term, anew: bool = False) -> int:
        """The number of a term; equal terms have one, if not `anew`."""
        number = len(self.nodes) if anew else self._numbers.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
            self.depends.append(both(self.depends[one] for one in inputs_of(node)))
        return number

    def dependence(self, tensors: Iterable[torch.Tensor]) -> Dependence:
        """What tensors depend on."""
        return both(self.depends[held.node] for tensor in tensors for held in self._within(tensor))

    def depend(self, tensor: torch.Tensor, on: Dependence) -> None:
        """Let the terms in a tensor depend on other blocks from now on."""
        for held in self._within(tensor):
            self.depends[held.node] = on

    def arrived(self, tensor: torch.Tensor) -> None:
        """Note that the values of what was received are there; copies of before have others."""
        number = self.read(tensor)
        node, on = self.nodes[number], self.depends[number]
        if isinstance(node, Received):
            self.write(tensor, self.add(replace(node, arrived=True)))
            self.depend(tensor, on._replace(unknown=False))

    def tracked(self, tensor: torch.Tensor) -> bool:
        """Whether some byte of a tensor holds a term."""
        return any(self._within(tensor))

    def _within(self, tensor: torch.Tensor) -> Iterator[Held]:
        several = self._of(tensor)
        if not several:  # as of most tensors
            return iter(())
        start, end = byte_range(tensor)
        return (held for held in several if held.start < end and start < held.end)

    def read(self, tensor: torch.Tensor) -> int:
        """The term of what a tensor spans."""
        start, end = byte_range(tensor)
        size = tensor.element_size()
        parts: list[tuple[int, int, int]] = []
        for held in self._of(tensor):
            if held.start >= end or held.end <= start:
                continue
            if start < held.start:
                parts.append(self._real(tensor, start, held.start))
            low, high = max(start, held.start), min(end, held.end)
            parts.append((held.node, held.first + (low - held.start) // size, (high - low) // size))
            start = high
        if start < end or not parts:
            parts.append(self._real(tensor, start, end))
        node, first, length = parts[0]
        if len(parts) == 1 and first == 0 and length == self.length(node):
            return node
        return self.add(Joined(tuple(parts)))

    def length(self, number: int) -> int:
        """Elements of a term."""
        node = self.nodes[number]
        if isinstance(node, Joined):
            return sum(length for _, _, length in node.parts)
        known = getattr(node, "length", None)
        if known is not None:
            return int(known)
        inputs = getattr(node, "inputs", None) or (getattr(node, "input", 0),)
        return self.length(inputs[0])

    def write(self, tensor: torch.Tensor, number: int | None) -> None:
        """Let a tensor hold a term from now on; None is data that is there.

        A tensor with gaps, such as a column of a matrix, makes one opaque term of all that it
        spans: of what was there and of what is written.
        """
        start, end = byte_range(tensor)
        if start == end:
            return
        if span(tensor) > tensor.numel():
            before = self.read(tensor)
            after = number if number is not None else self.add(content(tensor))
            place = f"written {tuple(tensor.size())} {tensor.stride()}"
            number = self.add(Applied(place, (before, after), span(tensor)))
        size = tensor.element_size()
        kept: list[Held] = []
        for held in self._of(tensor):
            if held.start < start:
                kept.append(held._replace(end=min(held.end, start)))
            if held.end > end:
                first = held.first + (max(held.start, end) - held.start) // size
                kept.append(held._replace(start=max(held.start, end), first=first))
        if number is not None:
            kept.append(Held(start, end, number, 0))
        self._keep(tensor, sorted(kept))

    def _real(self, tensor: torch.Tensor, start: int, end: int) -> tuple[int, int, int]:
        size = tensor.element_size()
        if not is_there(tensor):  # as what FSDP has gathered for a pass
            freed = Leaf("freed", (end - start) // size, constant=True)
            return self.add(freed), 0, freed.length
        part = tensor.detach().as_strided(((end - start) // size,), (1,), start // size)
        return self.add(content(part)), 0, (end - start) // size

    def _of(self, tensor: torch.Tensor) -> list[Held]:
        address = tensor.untyped_storage()._cdata
        known = self._held.get(address)
        return known[1] if known is not None and not _is_dead(known[0]) else []

    def _keep(self, tensor: torch.Tensor, held: list[Held]) -> None:
        storage = tensor.untyped_storage()
        if held:
            self._held[storage._cdata] = (_weak(storage), held)
        else:
            self._held.pop(storage._cdata, None)
        if len(self._held) % 4096 == 0:
            for address in [key for key, known in self._held.items() if _is_dead(known[0])]:
                del self._held[address]


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def _is_dead(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())  # type: ignore[no-untyped-call]
