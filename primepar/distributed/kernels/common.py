"""Functions that the torch kernels share: the dtype of sums, and dropout."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from primepar.models.dropout import Draw
from primepar.schedule.meaning import Box

Kernel = Callable[..., torch.Tensor | None]
"""`kernel(site, inputs, into, *blocks)`: writes every element of `into`, or returns its block."""

Line = tuple[int, int]
"""First element and end along one dim."""


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums and statistics: float32 for half precision."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def widened(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the dtype of sums."""
    return x.to(working_dtype(x.dtype))


@lru_cache(maxsize=256)
def counted(line: Line, device: torch.device) -> torch.Tensor:
    """Return the 64-bit integers of a range of elements."""
    return torch.arange(*line, device=device)


PIECE = {"cpu": 1 << 15}
"""Device type -> elements of a chunk for several operations, which then stays in its cache."""


def kept_elements(
    draw: Draw, probability: float, name: str, line_L: torch.Tensor, offset_S: torch.Tensor
) -> torch.Tensor:
    """Return whether dropout of operator `name` keeps the elements `line + offset`: `[L, S]`."""
    lines = max(1, PIECE.get(line_L.device.type, 1 << 62) // len(offset_S))
    pieces = (
        draw.kept(probability, name, piece[:, None] + offset_S)
        for piece in torch.split(line_L, lines)
    )
    return torch.cat(list(pieces))


def wide_room(into: torch.Tensor) -> torch.Tensor:
    """Return the block if it has the dtype of sums, else new memory of its shape that has it."""
    dtype = working_dtype(into.dtype)
    return into if into.dtype == dtype else torch.empty_like(into, dtype=dtype)


def drop_out(
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    draw: Draw | None,
    probability: float,
    name: str,
    box: Box,
    width: int,
) -> None:
    """Write a block in `box` of an activation with `width` columns after dropout.

    `name` is the operator whose output is dropped. Without a draw, or with probability 0, the
    result is a copy. `into_RC` may be `x_RC`.
    """
    if draw is None or not probability:
        into_RC.copy_(x_RC)
        return
    row_R, column_C = (counted(line, x_RC.device) for line in box)
    kept_RC = kept_elements(draw, probability, name, row_R * width, column_C)
    torch.mul(x_RC, kept_RC, out=into_RC).div_(1 - probability)
