"""Gathers full parameters, gradients and logits of a partitioned model, and loads parameters."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from primepar.distributed.modules.model import PartitionedModel
from primepar.distributed.runtime.scatter_gather import gather_tensor
from primepar.errors import ConfigError, ShapeError
from primepar.plan import layouts
from primepar.plan.layouts import logits_layout, padded_shape, padded_vocabulary
from primepar.schedule import Layout


def _parameter(model: PartitionedModel, name: str) -> nn.Parameter | None:
    """Return a parameter; None on a rank that holds nothing of it."""
    if name not in model.places:
        raise ConfigError(
            f"parameter {name!r}: expected a name of {type(model.config).__name__}"
            ".parameter_shapes, like 'blocks.0.qkv.weight'"
        )
    return dict(model.named_parameters()).get(name)


def parameter_layout(model: PartitionedModel, name: str) -> Layout:
    """Return the layout of a parameter, which its gradient and its optimizer state share.

    Raises `ConfigError` for an unknown name.
    """
    _parameter(model, name)
    return layouts.parameter_layout(model.plan, name)


def _full(model: PartitionedModel, name: str, block: torch.Tensor | None) -> torch.Tensor | None:
    """Gather the full tensor, without the padding of the vocabulary."""
    shape = padded_shape(model.plan, name)
    whole = gather_tensor(model.mesh, parameter_layout(model, name), block, shape)
    if whole is None:
        return None
    return whole[tuple(slice(size) for size in model.config.parameter_shapes[name])]


def full_parameter(model: PartitionedModel, name: str) -> torch.Tensor | None:
    """Return the full parameter on rank 0, None elsewhere; a collective call.

    Raises `ConfigError` for an unknown name.
    """
    return _full(model, name, _parameter(model, name))


def full_gradient(model: PartitionedModel, name: str) -> torch.Tensor | None:
    """Return the full gradient on rank 0, None elsewhere; a collective call.

    Raises `ConfigError` for an unknown name, or before a backward.
    """
    parameter = _parameter(model, name)
    gradient = None if parameter is None else parameter.grad
    if parameter is not None and gradient is None:
        raise ConfigError(
            f"parameter {name!r}: expected a gradient, got none: call loss(...).backward() first"
        )
    return _full(model, name, gradient)


def full_logits(model: PartitionedModel, tokens_BT: torch.Tensor) -> torch.Tensor | None:
    """Return the logits `[B, T, V]` on rank 0, None elsewhere; a collective call, no gradients."""
    logits, layout = model(tokens_BT), logits_layout(model.plan)
    shape = (tokens_BT.numel(), padded_vocabulary(model.plan))
    held = logits if layout.held[model.mesh.rank] else None
    whole = gather_tensor(model.mesh, layout, held, shape)
    if whole is None:
        return None
    return whole[:, : model.config.vocabulary].view(*tokens_BT.shape, -1)


def load_parameter(
    model: PartitionedModel, name: str, value: torch.Tensor | NDArray[Any]
) -> None:  # fmt: skip
    """Set a parameter from its full value; this rank copies its blocks.

    Raises `ConfigError` for an unknown name, `ShapeError` for another shape.
    """
    _parameter(model, name)
    whole, expected = torch.as_tensor(value), model.config.parameter_shapes[name]
    if tuple(whole.shape) != expected:
        raise ShapeError(f"parameter {name!r}: expected shape {expected}, got {tuple(whole.shape)}")
    for part in model.places[name]:
        model.set_parameter(name, part, whole.__getitem__)
