"""A parameter of a linear layer as a DTensor: its shape, its sections, its ordinary full tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from primepar.distributed.parallel.placements import Placements, device_mesh_of, placements_of
from primepar.distributed.runtime.scatter_gather import Parts
from primepar.errors import PlanError, ShapeError
from primepar.operators.single_operator import check_divided
from primepar.schedule.layout import Layout


class ShardMeshes:
    """Device meshes for layouts: the user's own where it fits, others made once.

    A collective use: all ranks ask for the same layouts in the same order.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self._made: dict[Layout, tuple[DeviceMesh, Placements]] = {}

    def of(self, layout: Layout) -> tuple[DeviceMesh, Placements]:
        """Return a mesh and the placements on it. Raises `PlanError` where there are none."""
        if layout not in self._made:
            try:
                self._made[layout] = self.mesh, placements_of(layout, self.mesh)
            except PlanError:
                self._made[layout] = device_mesh_of(layout, self.mesh.device_type)
        return self._made[layout]


@dataclass(frozen=True)
class Shard:
    """How a parameter is held: `ordinary` is its shape in the module, `dim` that of its columns K.

    Of several sections a rank has a part of each, so that dim K becomes two: sections, columns.
    `layout` is over the dims of this shape.
    """

    ordinary: tuple[int, ...]
    dim: int
    sections: int
    layout: Layout
    mesh: DeviceMesh
    placements: Placements

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the DTensor."""
        return _sectioned(self.ordinary, self.dim, self.sections)

    def parameter(self, whole: torch.Tensor, requires_grad: bool) -> nn.Parameter:
        """Return the parameter with this rank's part of a full tensor of the ordinary shape."""
        return nn.Parameter(self.cut(whole), requires_grad=requires_grad)

    def cut(self, whole: torch.Tensor) -> DTensor:
        """Return the DTensor of a full tensor. Raises `ShapeError` for another shape."""
        if tuple(whole.shape) != self.ordinary:
            raise ShapeError(
                f"expected a tensor of shape {self.ordinary}, got {tuple(whole.shape)}"
            )
        rank = torch.distributed.get_rank()
        (place,) = Parts("tensor", self.layout, rank, self.shape).whole.values()
        block = whole.detach().reshape(self.shape)[place].contiguous().clone()
        return DTensor.from_local(block, self.mesh, self.placements, run_check=False)

    def full(self, parameter: DTensor) -> torch.Tensor:
        """Return the full tensor in its ordinary shape; a collective call."""
        return parameter.full_tensor().reshape(self.ordinary)


def shard_of(
    name: str,
    ordinary: tuple[int, ...],
    dim: int,
    sections: int,
    layout: Layout,
    meshes: ShardMeshes,
) -> Shard:
    """Return how a parameter is held; `layout` is over its ordinary dims.

    Raises `ShapeError` if the layout does not divide it, `PlanError` if no DTensor is in it.
    """
    if sections > 1:
        grid = _sectioned_index(layout.grid, dim, 1)
        held = tuple(tuple(_sectioned_index(b, dim, 0) for b in held) for held in layout.held)
        layout = Layout(grid, held)
    check_divided(_sectioned(ordinary, dim, sections), layout.grid, name)
    try:
        mesh, placements = meshes.of(layout)
    except PlanError as error:
        raise PlanError(f"{name}: {error}") from None
    return Shard(ordinary, dim, sections, layout, mesh, placements)


def _sectioned(shape: tuple[int, ...], dim: int, sections: int) -> tuple[int, ...]:
    if sections == 1:
        return shape
    return (*shape[:dim], sections, shape[dim] // sections, *shape[dim + 1 :])


def _sectioned_index(index: tuple[int, ...], dim: int, section: int) -> tuple[int, ...]:
    return (*index[:dim], section, *index[dim:])
