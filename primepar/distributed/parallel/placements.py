"""Layouts as DTensor placements on a device mesh, and back.

A DTensor has its blocks in the order of a device mesh. P2x2 has a weight in skewed blocks: rank 1
has block (1, 1). No placement on a mesh of ranks in their order has them so. A mesh with the ranks
in another order does, and `device_mesh_of` makes that.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from inspect import signature
from itertools import product
from math import prod

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from primepar.errors import MeshError, PlanError
from primepar.schedule.layout import Layout

Placements = tuple[Placement, ...]


def placements_of(layout: Layout, mesh: DeviceMesh) -> Placements:
    """Return the placements of a tensor in `layout` on a mesh of all its ranks.

    Raises `PlanError` with the reason if there are none.
    """
    _check_size(layout, mesh)
    choices = product((Replicate(), *map(Shard, range(len(layout.grid)))), repeat=mesh.ndim)
    for chosen in choices:
        if _same(layout_of(chosen, mesh, len(layout.grid)), layout):
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


def _same(first: Layout, second: Layout) -> bool:
    return first.grid == second.grid and first.held == second.held


def _check_size(layout: Layout, mesh: DeviceMesh) -> None:
    if mesh.size() != layout.ranks:
        raise MeshError(
            f"mesh of shape {tuple(mesh.shape)}: expected the {layout.ranks} ranks of the layout, "
            f"got {mesh.size()}: take a mesh of all of them"
        )


def _text(layout: Layout) -> str:
    return " ".join(f"{rank}:{','.join(map(str, held))}" for rank, held in enumerate(layout.held))
