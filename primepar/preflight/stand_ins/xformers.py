"""In place of the package xformers: attention of (batch, length, heads, width), dense."""

from typing import Any

import torch
from torch.nn import functional

__version__ = "0.0.32"


class AttentionBias:
    """What is added to the scores; `causal` masks what is later."""

    causal = False


class LowerTriangularMask(AttentionBias):
    """No query sees a later key."""

    causal = True

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def memory_efficient_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: Any = None,
    p: float = 0.0, scale: float | None = None, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Attention; of three dims (batch, length, width) with one head."""
    single = query.dim() == 3
    parts = [one.unsqueeze(2) if single else one for one in (query, key, value)]
    bias = attn_bias if isinstance(attn_bias, torch.Tensor) else None
    if attn_bias is not None and bias is None and not isinstance(attn_bias, AttentionBias):
        raise TypeError(f"expected a mask of xformers or a tensor, got {type(attn_bias).__name__}")
    out = functional.scaled_dot_product_attention(
        *(one.transpose(1, 2) for one in parts), bias, p, scale=scale,
        is_causal=getattr(attn_bias, "causal", False), enable_gqa=True,
    ).transpose(1, 2)  # fmt: skip
    return out.squeeze(2) if single else out
