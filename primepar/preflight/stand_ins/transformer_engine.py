"""In place of the package transformer_engine: its layers in torch, without FP8."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__version__ = "2.8.0"
__all__ = ["checkpoint"]


class Format(Enum):
    """Types of FP8."""

    E4M3, E5M2, HYBRID = "E4M3", "E5M2", "HYBRID"


class DelayedScaling(SimpleNamespace):
    """A recipe of FP8, which nothing is computed by."""


Float8CurrentScaling = MXFP8BlockScaling = Float8BlockScaling = DelayedScaling


@contextmanager
def fp8_autocast(*_: Any, **__: Any) -> Iterator[None]:
    """A scope in which nothing is computed in FP8."""
    yield


autocast = fp8_model_init = quantized_model_init = fp8_autocast


def _alone(named: dict[str, Any]) -> dict[str, Any]:
    """The type and the device of parameters; layers that communicate have no stand-in."""
    if named.get("parallel_mode") or named.get("set_parallel_mode"):
        raise NotImplementedError("transformer_engine's own tensor parallelism has no stand-in")
    return {"dtype": named.get("params_dtype"), "device": named.get("device")}


class _Linear(nn.Linear):
    """A linear layer."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 **named: Any) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, **_alone(named))

    def forward(self, inp: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Compute the layer."""
        return super().forward(inp)


class _LayerNorm(nn.LayerNorm):
    """A layer norm."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, **named: Any) -> None:
        super().__init__(normalized_shape, eps, **_alone(named))


class _RMSNorm(nn.RMSNorm):
    """A norm without a mean."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, **named: Any) -> None:
        super().__init__(normalized_shape, eps, **_alone(named))


Linear, LayerNorm, RMSNorm = _Linear, _LayerNorm, _RMSNorm


class _Normed(nn.Module):
    """A norm before a layer, with its parameters named as in transformer_engine."""

    def __init__(self, width: int, eps: float, named: dict[str, Any]) -> None:
        super().__init__()
        self.where, self.width, self.eps = _alone(named), width, eps
        self.layer_norm_weight = nn.Parameter(torch.ones(width, **self.where))
        self.layer_norm_bias = None
        if named.get("normalization", "LayerNorm") == "LayerNorm":
            self.layer_norm_bias = nn.Parameter(torch.zeros(width, **self.where))

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the norm."""
        if self.layer_norm_bias is None:
            return functional.rms_norm(x, [self.width], self.layer_norm_weight, self.eps)
        parameters = self.layer_norm_weight, self.layer_norm_bias
        return functional.layer_norm(x, [self.width], *parameters, self.eps)

    def matrix(self, rows: int, columns: int) -> nn.Parameter:
        """A weight, as a linear layer draws it."""
        return nn.Linear(columns, rows, bias=False, **self.where).weight

    def bias(self, rows: int, named: dict[str, Any]) -> nn.Parameter | None:
        """A bias of zeros, or None."""
        if not named.get("bias", True):
            return None
        return nn.Parameter(torch.zeros(rows, **self.where))


class LayerNormLinear(_Normed):
    """A norm and a linear layer."""

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5,
                 **named: Any) -> None:  # fmt: skip
        super().__init__(in_features, eps, named)
        self.weight = self.matrix(out_features, in_features)
        self.register_parameter("bias_", self.bias(out_features, named))

    def forward(self, inp: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Compute both."""
        return functional.linear(self.normed(inp), self.weight, self.bias_)


class LayerNormMLP(_Normed):
    """A norm and a feed-forward block, gated where its activation is."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5,
                 activation: str = "gelu", **named: Any) -> None:  # fmt: skip
        super().__init__(hidden_size, eps, named)
        self.gated = activation in ("geglu", "swiglu", "reglu")
        kind = {"geglu": "gelu", "swiglu": "silu", "reglu": "relu"}.get(activation, activation)
        self.activation = getattr(functional, kind)
        rows = ffn_hidden_size * (2 if self.gated else 1)
        self.fc1_weight = self.matrix(rows, hidden_size)
        self.fc2_weight = self.matrix(hidden_size, ffn_hidden_size)
        self.register_parameter("fc1_bias", self.bias(rows, named))
        self.register_parameter("fc2_bias", self.bias(hidden_size, named))

    def forward(self, inp: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Compute the block."""
        up = functional.linear(self.normed(inp), self.fc1_weight, self.fc1_bias)
        gate, *rest = up.chunk(2, -1) if self.gated else (up,)
        inner = self.activation(gate) * rest[0] if rest else self.activation(gate)
        return functional.linear(inner, self.fc2_weight, self.fc2_bias)
