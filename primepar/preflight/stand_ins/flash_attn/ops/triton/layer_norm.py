"""Norms over the last dim, with a residual that is added before."""

from typing import Any

import torch


def layer_norm_fn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    residual: torch.Tensor | None = None, *_: Any, eps: float = 1e-6, prenorm: bool = False,
    is_rms_norm: bool = False, **__: Any,
) -> Any:  # fmt: skip
    """The norm; with `prenorm` also the sum of x and the residual."""
    total = x if residual is None else x + residual
    wide = total.float()
    wide = wide if is_rms_norm else wide - wide.mean(-1, keepdim=True)
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    out = (out if bias is None else out + bias).to(x.dtype)
    return (out, total) if prenorm else out


def rms_norm_fn(x: torch.Tensor, weight: torch.Tensor, bias: Any, *args: Any, **named: Any) -> Any:
    """The norm without a mean."""
    return layer_norm_fn(x, weight, bias, *args, **named | {"is_rms_norm": True})
