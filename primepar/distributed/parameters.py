"""Whole parameters, gradients and logits of a partitioned model, by name: out of it and into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from primepar.distributed.model import PartitionedModel
from primepar.distributed.model_maker import padded, padded_shape
from primepar.distributed.redistribute import gather_tensor, scatter_tensor
from primepar.errors import ConfigError, ShapeError, TrainingOrderError
from primepar.plan import ends as ends_of
from primepar.schedule import Layout
from primepar.schedule.layout import Cells, Piece, Slices


def _parameter(model: PartitionedModel, name: str) -> nn.Parameter:
    parameters = dict(model.named_parameters())
    if name not in parameters:
        raise ConfigError(
            f"parameter {name!r}: expected a name of {type(model.config).__name__}"
            ".parameter_shapes, like 'blocks.0.qkv.weight'"
        )
    return parameters[name]


def parameter_layout(model: PartitionedModel, name: str) -> Layout:
    """Layout of a parameter at home, of its gradient, and of what an optimizer keeps for it.

    Raises `ConfigError` for an unknown name, `TrainingOrderError` while the parameter is away.
    """
    _parameter(model, name)
    if model.away(name):
        raise TrainingOrderError(
            f"parameter {name!r}: expected its block at home, got it away between forward and "
            "backward: call backward() first"
        )
    return model.places[name].layout


def _full(model: PartitionedModel, name: str, block: torch.Tensor) -> torch.Tensor | None:
    """Gather without what the vocabulary is padded with."""
    whole = gather_tensor(model.mesh, parameter_layout(model, name), block)
    if whole is None:
        return None
    return whole[tuple(slice(size) for size in model.config.parameter_shapes[name])]


@dataclass(frozen=True)
class Place:
    """Where this rank's blocks of a parameter lie in the whole, and whether this rank writes them.

    Padding is in none of the pieces.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    writes: bool

    def fill(self, own: torch.Tensor, read: Callable[[Slices], Any]) -> None:
        """Set what this rank holds from what `read` gives of the whole; padding becomes zero."""
        with torch.no_grad():
            own.zero_()
            for piece in self.pieces:
                own[piece.own] = torch.as_tensor(read(piece.whole)).to(own)


def places(model: PartitionedModel) -> dict[str, Place]:
    """Parameter name -> its place; of the ranks that hold the same the lowest writes it.

    What is all padding is nobody's to write.
    """
    rank = model.mesh.rank
    found = {}
    for name, shape in model.config.parameter_shapes.items():
        layout = parameter_layout(model, name)
        cells = Cells.of(layout).pieces(layout, rank, padded_shape(model.plan, name))
        pieces = tuple(cut for piece in cells.values() if (cut := _without_padding(piece, shape)))
        first = layout.held.index(layout.held[rank]) == rank
        found[name] = Place(shape, pieces, first and bool(pieces))
    return found


def _without_padding(piece: Piece, shape: tuple[int, ...]) -> Piece | None:
    """The piece within a tensor of `shape`; None where it is all padding."""
    sizes = [min(at.stop, end) - at.start for at, end in zip(piece.whole, shape, strict=True)]
    if min(sizes) <= 0:
        return None
    whole, own = (
        tuple(slice(at.start, at.start + size) for at, size in zip(side, sizes, strict=True))
        for side in piece
    )
    return Piece(whole, own)


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
    with torch.no_grad():
        block = model(tokens_BT)
    whole = gather_tensor(model.mesh, ends_of(model.plan, "head").output, block)
    if whole is None:
        return None
    return whole[:, : model.config.vocabulary].view(*tokens_BT.shape, -1)


def load_parameter(
    model: PartitionedModel, name: str, value: torch.Tensor | NDArray[Any]
) -> None:  # fmt: skip
    """Set a parameter from its whole value, of which this rank takes its block.

    Raises `ConfigError` for an unknown name, `ShapeError` for another shape.
    """
    parameter, whole = _parameter(model, name), torch.as_tensor(value)
    expected = model.config.parameter_shapes[name]
    if tuple(whole.shape) != expected:
        raise ShapeError(f"parameter {name!r}: expected shape {expected}, got {tuple(whole.shape)}")
    layout = parameter_layout(model, name)
    with torch.no_grad():
        parameter.copy_(scatter_tensor(model.mesh, layout, padded(model.plan, name, whole)))
