"""Layouts as DTensor placements on a device mesh, and back.

A DTensor has its blocks in the order of a device mesh. P2x2 has a weight in skewed blocks: rank 1
has block (1, 1). No placement on a mesh of ranks in their order has them so. A mesh with the ranks
in another order does, and `device_mesh_of` makes that.

A `ShardedParameter` is that of a linear layer: its shape, its sections, its ordinary full tensor.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from inspect import signature
from itertools import product
from math import prod

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from primepar.distributed.runtime.scatter_gather import Parts
from primepar.errors import MeshError, PlanError, ShapeError
from primepar.operators.single_operator import check_divided
from primepar.schedule.layout import Layout

Placements = tuple[Placement, ...]


def placements_of(layout: Layout, mesh: DeviceMesh) -> Placements:
    """Return the placements of a tensor in `layout` on a mesh of all its ranks.

    Raises `PlanError` with the reason if there are none.
    """
    if mesh.size() != layout.ranks:
        raise MeshError(
            f"mesh of shape {tuple(mesh.shape)}: expected the {layout.ranks} ranks of the layout, "
            f"got {mesh.size()}: take a mesh of all of them"
        )
    choices = product((Replicate(), *map(Shard, range(len(layout.grid)))), repeat=mesh.ndim)
    for chosen in choices:
        if layout_of(chosen, mesh, len(layout.grid)) == layout:
            return chosen
    raise PlanError(
        f"layout {_text(layout)}: expected one that placements on a mesh of shape "
        f"{tuple(mesh.shape)} express, got another order of blocks: take device_mesh_of(layout), "
        "which has the ranks in that order"
    )


def layout_of(placements: Several[Placement], mesh: DeviceMesh, dims: int) -> Layout:
    """Return the layout of a tensor with `dims` dims and these placements.

    Several mesh dims that cut one dim of the tensor cut it one after another. Raises `PlanError`
    for a placement that is neither `Shard` nor `Replicate`.
    """
    ranks = mesh.mesh.numpy()
    grid, index = [1] * dims, np.zeros((dims, *ranks.shape), dtype=int)
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            dim, size = placement.dim, ranks.shape[axis]
            along = np.arange(size).reshape([-1 if a == axis else 1 for a in range(ranks.ndim)])
            grid[dim], index[dim] = grid[dim] * size, index[dim] * size + along
        elif not isinstance(placement, Replicate):
            raise PlanError(
                f"expected placements Shard or Replicate, got {placement}: reduce it first"
            )
    blocks = index.reshape(dims, -1).T[np.argsort(ranks.reshape(-1))]
    return Layout(tuple(grid), tuple((tuple(map(int, block)),) for block in blocks))


def device_mesh_of(layout: Layout, device: str = "cpu") -> tuple[DeviceMesh, Placements]:
    """Return a mesh with the ranks in the order of a layout's blocks, and the placements on it.

    A collective call: every rank makes its groups in the same order. Raises `PlanError` unless
    every rank has one block, and every block is on equally many ranks.
    """
    ranks, placements = _ordered(layout)
    if "sort_ranks" not in signature(dist.new_group).parameters:
        raise MeshError(
            "torch.distributed.new_group: expected its argument sort_ranks, got a torch without "
            "it: install torch 2.13"
        )
    groups = []
    for axis in range(ranks.ndim):
        lines = np.moveaxis(ranks, axis, -1).reshape(-1, ranks.shape[axis]).tolist()
        made = [dist.new_group(line, sort_ranks=False) for line in lines]
        member = next(place for place, line in enumerate(lines) if dist.get_rank() in line)
        groups.append(made[member])
    names = tuple(f"dim{axis}" for axis in range(ranks.ndim))
    return DeviceMesh.from_group(groups, device, ranks.tolist(), mesh_dim_names=names), placements


def _ordered(layout: Layout) -> tuple[NDArray[np.int_], Placements]:
    """Return the ranks by block and copy, without dims of one rank, and the placements."""
    by_block: dict[tuple[int, ...], list[int]] = {}
    for rank, held in enumerate(layout.held):
        by_block.setdefault(held[0], []).append(rank)
    copies = layout.ranks // prod(layout.grid)
    even = all(len(held) == 1 for held in layout.held)
    if not even or any(len(group) != copies for group in by_block.values()):
        raise PlanError(
            f"layout {_text(layout)}: expected one block on every rank, and each block on equally "
            "many, as DTensor has: take another sequence"
        )
    flat = [rank for block in sorted(by_block) for rank in by_block[block]]
    sizes = {**dict(enumerate(layout.grid)), len(layout.grid): copies}
    kept = {dim: size for dim, size in sizes.items() if size > 1} or {len(layout.grid): 1}
    placements = tuple(Shard(dim) if dim < len(layout.grid) else Replicate() for dim in kept)
    return np.array(flat).reshape(list(kept.values())), placements


def _text(layout: Layout) -> str:
    return " ".join(f"{rank}:{','.join(map(str, held))}" for rank, held in enumerate(layout.held))


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
class ShardedParameter:
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
) -> ShardedParameter:
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
    return ShardedParameter(ordinary, dim, sections, layout, mesh, placements)


def _sectioned(shape: tuple[int, ...], dim: int, sections: int) -> tuple[int, ...]:
    if sections == 1:
        return shape
    return (*shape[:dim], sections, shape[dim] // sections, *shape[dim + 1 :])


def _sectioned_index(index: tuple[int, ...], dim: int, section: int) -> tuple[int, ...]:
    return (*index[:dim], section, *index[dim:])
