"""Operators of single elements: activations and dropout; nothing is sent.

Legend: R rows, C columns and F features of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from primepar.distributed.stream import Stream
from primepar.models import ModelConfig
from primepar.models.dropout import Draw

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


def activate(config: ModelConfig, x_RC: torch.Tensor) -> torch.Tensor:
    """The model's activation; where it is gated, of pairs of columns (gate, up) to one each."""
    activation = ACTIVATIONS[config.activation]
    if not config.gated:
        return activation(x_RC)
    gate_RF, up_RF = x_RC.view(len(x_RC), -1, 2).unbind(2)
    return activation(gate_RF) * up_RF


def drop_out(
    stream: Stream, x_RC: torch.Tensor, probability: float, name: str, draw: Draw | None
) -> torch.Tensor:
    """Drop what one device drops in the output of operator `name`, whatever the layout."""
    if draw is None or not probability:
        return x_RC
    kept_RC: torch.Tensor = draw.kept(probability, name, stream.elements(x_RC))
    return x_RC * kept_RC / (1 - probability)
