"""Whole parameters, gradients and logits of a partitioned model, by name: out of it and into it."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from primepar.distributed.modules.model import PartitionedModel
from primepar.distributed.runtime.scatter_gather import gather_tensor
from primepar.errors import ConfigError, ShapeError
from primepar.plan import ends
from primepar.plan.layouts import parameter_place
from primepar.schedule import Layout


def _parameter(model: PartitionedModel, name: str) -> nn.Parameter:
    parameters = dict(model.named_parameters())
    if name not in parameters:
        raise ConfigError(
            f"parameter {name!r}: expected a name of {type(model.config).__name__}"
            ".parameter_shapes, like 'blocks.0.qkv.weight'"
        )
    return parameters[name]


def parameter_layout(model: PartitionedModel, name: str) -> Layout:
    """Layout of a parameter, of its gradient, and of what an optimizer keeps for it.

    Raises `ConfigError` for an unknown name.
    """
    _parameter(model, name)
    return parameter_place(model.plan, name).layout


def _full(model: PartitionedModel, name: str, block: torch.Tensor) -> torch.Tensor | None:
    """Gather without what the vocabulary is padded with."""
    whole = gather_tensor(model.mesh, parameter_layout(model, name), block)
    if whole is None:
        return None
    return whole[tuple(slice(size) for size in model.config.parameter_shapes[name])]


def full_parameter(model: PartitionedModel, name: str) -> torch.Tensor | None:
    """The whole parameter on rank 0, None elsewhere; a collective call. Raises `ConfigError`."""
    return _full(model, name, _parameter(model, name))


def full_gradient(model: PartitionedModel, name: str) -> torch.Tensor | None:
    """The whole gradient on rank 0, None elsewhere; a collective call. Raises `ConfigError`."""
    gradient = _parameter(model, name).grad
    if gradient is None:
        raise ConfigError(
            f"parameter {name!r}: expected a gradient, got none: call loss(...).backward() first"
        )
    return _full(model, name, gradient)


def full_logits(model: PartitionedModel, tokens_BT: torch.Tensor) -> torch.Tensor | None:
    """Logits `[B, T, V]` on rank 0, None elsewhere, without gradients; a collective call."""
    whole = gather_tensor(model.mesh, ends(model.plan, "head").output, model(tokens_BT))
    if whole is None:
        return None
    return whole[:, : model.config.vocabulary].view(*tokens_BT.shape, -1)


def load_parameter(
    model: PartitionedModel, name: str, value: torch.Tensor | NDArray[Any]
) -> None:  # fmt: skip
    """Set a parameter from its whole value, of which this rank takes its block.

    Raises `ConfigError` for an unknown name, `ShapeError` for another shape.
    """
    _parameter(model, name)
    whole, expected = torch.as_tensor(value), model.config.parameter_shapes[name]
    if tuple(whole.shape) != expected:
        raise ShapeError(f"parameter {name!r}: expected shape {expected}, got {tuple(whole.shape)}")
    for part in model.places[name]:
        part.fill(model.block(name, part), whole.__getitem__)
