"""Splits a rank's part of a tensor into blocks and back; scatters and gathers full tensors."""

from __future__ import annotations

from functools import lru_cache

import torch

from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.running import Blocks
from primepar.distributed.runtime.shapes import Shape
from primepar.operators.single_operator import check_divided, lower_move, rectangular
from primepar.schedule import Layout
from primepar.schedule.layout import Cells
from primepar.schedule.operators import block_name
from primepar.schedule.program import Program


class Parts:
    """The part of a tensor on one rank: some slices of each dim, concatenated in their order.

    Programs have it as the blocks of the layout's grid, with the tensor name `name`. `local` maps
    a block to its slices in the part, `whole` to its slices in the full tensor.
    """

    def __init__(self, name: str, layout: Layout, rank: int, shape: Shape) -> None:
        pieces = Cells.even(layout.grid).pieces(layout, rank, shape)
        self.local = {block_name(name, index): piece.local for index, piece in pieces.items()}
        self.whole = {block_name(name, index): piece.whole for index, piece in pieces.items()}
        self.shape = layout.own_shape(rank, shape)
        self._only = next(iter(self.local)) if len(self.local) == 1 else None

    def cut(self, block: torch.Tensor) -> Blocks:
        """Return the blocks by name; each one is contiguous."""
        if self._only is not None:
            return {self._only: block.contiguous()}
        return {name: block[place].contiguous() for name, place in self.local.items()}

    def take(self, blocks: Blocks) -> torch.Tensor:
        """Remove the blocks from the dict, and return them concatenated."""
        if self._only is not None:
            return blocks.pop(self._only)
        parts = [(place, blocks.pop(name)) for name, place in self.local.items()]
        whole = parts[0][1].new_empty(self.shape)
        for place, block in parts:
            whole[place] = block
        return whole


def scatter_tensor(mesh: Mesh, layout: Layout, whole: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a full tensor, on the mesh's device in the mesh's dtype.

    Raises `ShapeError` if the layout's grid does not divide the tensor.
    """
    shape = tuple(whole.shape)
    check_divided(shape, layout.grid, "tensor")
    parts = Parts("tensor", rectangular(layout, "tensor"), mesh.rank, shape)
    part = torch.empty(parts.shape, device=mesh.device, dtype=mesh.dtype)
    for name, place in parts.local.items():
        part[place] = whole[parts.whole[name]]
    return part


@lru_cache(maxsize=64)
def _move_to_root(layout: Layout, shape: tuple[int, ...], wide: bool) -> Program:
    """The program that takes a tensor to rank 0; the layers of a model share theirs."""
    origin = (0,) * len(shape)
    on_root = Layout((1,) * len(shape), ((origin,), *((),) * (layout.ranks - 1)))
    return lower_move(layout, on_root, shape, wide=wide)


def gather_tensor(
    mesh: Mesh, layout: Layout, part: torch.Tensor | None, shape: Shape | None = None
) -> torch.Tensor | None:
    """Return the full tensor on rank 0, None elsewhere; a collective call.

    `part` has the mesh's dtype, or the dtype of its sums and statistics. It is None on a rank that
    holds nothing of the tensor; then every rank gives the full `shape`, and the mesh's dtype.
    """
    if shape is None:
        assert part is not None, "a rank without a part needs the shape"
        shape = layout.whole_shape(mesh.rank, part.shape)
    program = _move_to_root(layout, shape, part is not None and part.dtype != mesh.dtype)
    parts = Parts("x", layout, mesh.rank, shape)
    given = {} if part is None else parts.cut(part.detach())
    blocks = Executor(mesh, program, kind="gather")(given)
    return None if mesh.rank else next(iter(blocks.values()))
