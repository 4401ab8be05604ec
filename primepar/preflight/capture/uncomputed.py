"""Large tensors without numbers: a script of a large model is captured in the memory of a laptop.

With `--shrink` no operation on a tensor of more than `LARGEST` elements is computed. For example

    up = nn.Linear(4096, 11008)        # 45 M elements: memory that nobody touches, so not there
    y = up(x)                          # torch's meta kernel has its shape; nothing is multiplied

What such a tensor would hold is known as data of other ranks are: as a term, and by how it was
computed. So gradients and replicas are compared as ever. Whatever the script decides by it is taken
either way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_map

LARGEST = 1 << 16
"""Elements of a tensor that is computed."""
_MMAP_THRESHOLD = -3
"""Of glibc's `mallopt`: blocks from this size on are of the system's fresh pages."""


def install() -> None:
    """Let memory that nobody touches not be there, also where a block is used again."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 17)


def is_large(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a tensor has more elements than are computed."""
    return any(tensor.numel() > LARGEST for tensor in tensors)


def creates_large(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation without tensors makes a large one, such as `empty` or `randn`."""
    with suppress(NotImplementedError, RuntimeError, TypeError):
        made = _on_meta(func, args, kwargs | {"device": torch.device("meta")})
        return isinstance(made, torch.Tensor) and is_large([made])
    return False


def shaped(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation returns, without its numbers: new tensors, or those that it writes.

    Raises `NotImplementedError` or `RuntimeError` where torch knows no shape without numbers.
    """
    meta: dict[int, torch.Tensor] = {}

    def given(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        meta[id(shape)] = value
        kept.append(shape)
        return shape

    def made(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) in meta:
            return meta.get(id(value), value)
        result = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
        return result if is_large([result]) else result.zero_()

    kept: list[torch.Tensor] = []
    places, named = tree_map(given, (tuple(args), kwargs))
    if "device" in kwargs or not kept:
        named["device"] = torch.device("meta")
    return tree_map(made, _on_meta(func, places, named))


def draw(generator: Any) -> None:
    """Draw a number, so that the next random numbers have another name."""
    torch.rand(1, generator=generator)


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **{name: value for name, value in kwargs.items() if name != "generator"})
