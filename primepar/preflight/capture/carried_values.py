"""Values that travel for real: sizes, pickled objects and other small tensors.

Torch sends shapes and objects as tensors of integers, and scripts read them at once. They are
passed from process to process. Other tensors come without values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import msgspec
import torch
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.meaning.storages import NUMPY

LARGEST_WHOLE = 1 << 26
"""Bytes of integers that are passed on."""
LARGEST_FRACTIONAL = 64
"""Elements of other tensors that are passed on, where the script reads them."""

_ENCODE = msgspec.msgpack.encode
_DECODER = msgspec.msgpack.Decoder(list[bytes])


def whole(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors are of integers or truth values, that scripts read."""
    return bool(tensors) and not any(
        tensor.is_floating_point() or tensor.is_complex() for tensor in tensors
    )


def small(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors are passed on with their values."""
    if whole(tensors):
        return sum(tensor.nbytes for tensor in tensors) <= LARGEST_WHOLE
    return sum(tensor.numel() for tensor in tensors) <= LARGEST_FRACTIONAL


def packed(tensors: Sequence[torch.Tensor]) -> bytes | None:
    """The values of tensors; None if they have none."""
    if any(tensor.device.type == "meta" for tensor in tensors):
        return None
    with torch.no_grad(), _disable_current_modes():
        return _ENCODE([_bytes(tensor) for tensor in tensors])


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return NUMPY(flat).tobytes()


def unpacked(value: bytes, like: torch.Tensor) -> list[torch.Tensor]:
    """The flat tensors of a packed value, in the dtype of another tensor."""
    return [
        torch.frombuffer(bytearray(part), dtype=like.dtype) if part else like.new_empty(0)
        for part in _DECODER.decode(value)
    ]


def put(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write a flat value into a tensor, as much as fits: sizes that differ are refuted anyway."""
    flat = target.detach().new_zeros(target.numel())
    size = min(flat.numel(), value.numel())
    flat[:size] = value.reshape(-1)[:size]
    target.detach().copy_(flat.view(target.shape))


def reduced(values: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """The reduction of equally long tensors."""
    if reduction == "mean":
        return torch.stack(tuple(values)).sum(0) // len(values)
    function = _REDUCTIONS[reduction]
    return reduce(function, values)


_REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}
