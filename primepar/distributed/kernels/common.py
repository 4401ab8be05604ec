"""What the torch kernels share: the type of sums, and which elements dropout keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from primepar.models.dropout import Draw
from primepar.schedule.meaning import Box

Kernel = Callable[..., torch.Tensor]
"""`kernel(site, inputs, *blocks)`, from blocks to a new block."""

Line = tuple[int, int]
"""First element and end along one dim."""


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums and statistics are held in: float32 for half precision."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def widened(x: torch.Tensor) -> torch.Tensor:
    """The same in the type of sums."""
    return x.to(working_dtype(x.dtype))


@lru_cache(maxsize=256)
def counted(line: Line, device: torch.device) -> torch.Tensor:
    """The 64-bit integers from the first element to the end."""
    return torch.arange(*line, device=device)


PIECE = {"cpu": 1 << 15}
"""Type of device -> elements that several operations go over at a time, to stay in its cache."""


def kept_elements(
    draw: Draw, probability: float, name: str, line_L: torch.Tensor, at_S: torch.Tensor
) -> torch.Tensor:
    """Whether dropout of operator `name` keeps the elements `line + at`: `[L, S]`."""
    lines = max(1, PIECE.get(line_L.device.type, 1 << 62) // len(at_S))
    pieces = (
        draw.kept(probability, name, piece[:, None] + at_S) for piece in torch.split(line_L, lines)
    )
    return torch.cat(list(pieces))


def drop_out(
    x_RC: torch.Tensor, draw: Draw | None, probability: float, name: str, box: Box, width: int
) -> torch.Tensor:
    """What dropout makes of a block in `box` of an activation with `width` columns; a new tensor.

    `name` is the operator whose output is dropped. Without a draw, or a probability, it is a copy.
    """
    if draw is None or not probability:
        return x_RC.clone()
    row_R, column_C = (counted(line, x_RC.device) for line in box)
    kept_RC = kept_elements(draw, probability, name, row_R * width, column_C)
    return (x_RC * kept_RC).div_(1 - probability)
