"""Rotary positions of x (batch, length, heads, width): cos and sin are (length, width / 2)."""

from typing import Any

import torch


def apply_rotary_emb(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False, *_: Any,
    **__: Any,
) -> torch.Tensor:  # fmt: skip
    """Turn pairs of x: its halves, or neighbours with `interleaved`; what is beyond stays."""
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    cos, sin = (part[: x.shape[1]].unsqueeze(-2) for part in (cos, sin))
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    parts = first * cos - second * sin, first * sin + second * cos
    whole = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([whole, rest], -1)
