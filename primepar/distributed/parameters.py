"""Whole parameters and gradients of a partitioned GPT, by name: out of it and into it."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from primepar.distributed.gpt import GPT
from primepar.distributed.linear import PartitionedLinear
from primepar.distributed.redistribute import gather_tensor, scatter_tensor
from primepar.errors import ConfigError, ShapeError, TrainingOrderError
from primepar.schedule import Layout


def _parameter(model: GPT, name: str) -> nn.Parameter:
    parameters = dict(model.named_parameters())
    if name not in parameters:
        raise ConfigError(
            f"parameter {name!r}: expected a name of GPTConfig.parameter_shapes, "
            "like 'blocks.0.qkv.weight'"
        )
    return parameters[name]


def parameter_layout(model: GPT, name: str) -> Layout:
    """Layout of a parameter at home, of its gradient, and of what an optimizer keeps for it.

    Raises `ConfigError` for an unknown name, `TrainingOrderError` while the parameter is away.
    """
    table = _parameter(model, name).dim() == 2
    owner = model.get_submodule(name.rpartition(".")[0])
    if not isinstance(owner, PartitionedLinear):
        return model.stream.of_table() if table else model.stream.of_columns()
    if owner.away:
        raise TrainingOrderError(
            f"parameter {name!r}: expected its block at home, got it away between forward and "
            "backward: call backward() first"
        )
    return owner.home


def full_parameter(model: GPT, name: str) -> torch.Tensor | None:
    """The whole parameter on rank 0, None elsewhere; a collective call. Raises `ConfigError`."""
    return gather_tensor(model.mesh, parameter_layout(model, name), _parameter(model, name))


def full_gradient(model: GPT, name: str) -> torch.Tensor | None:
    """The whole gradient on rank 0, None elsewhere; a collective call. Raises `ConfigError`."""
    gradient = _parameter(model, name).grad
    if gradient is None:
        raise ConfigError(
            f"parameter {name!r}: expected a gradient, got none: call loss(...).backward() first"
        )
    return gather_tensor(model.mesh, parameter_layout(model, name), gradient)


def load_parameter(model: GPT, name: str, value: torch.Tensor | NDArray[Any]) -> None:
    """Set a parameter from its whole value, of which this rank takes its block.

    Raises `ConfigError` for an unknown name, `ShapeError` for another shape.
    """
    parameter, whole = _parameter(model, name), torch.as_tensor(value)
    expected = model.config.parameter_shapes[name]
    if tuple(whole.shape) != expected:
        raise ShapeError(f"parameter {name!r}: expected shape {expected}, got {tuple(whole.shape)}")
    with torch.no_grad():
        parameter.copy_(scatter_tensor(model.mesh, parameter_layout(model, name), whole))
