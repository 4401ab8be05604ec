"""Tensors of a mesh: taken apart into blocks and put together, scattered and gathered."""

from __future__ import annotations

import torch

from primepar.distributed.runtime.buffers import Shape
from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.messages import Blocks
from primepar.operators.single_operator import check_divided, lower_move, resting
from primepar.schedule import Layout
from primepar.schedule.layout import Cells
from primepar.schedule.operators import block_name


class Parts:
    """What one rank holds of a tensor: some slices of each dim, put together in their order.

    `name` is that of its blocks in a program, which are those of the layout's grid.
    """

    def __init__(self, name: str, layout: Layout, rank: int, shape: Shape) -> None:
        pieces = Cells.even(layout.grid).pieces(layout, rank, shape)
        self.own = {block_name(name, at): piece.local for at, piece in pieces.items()}
        self.whole = {block_name(name, at): piece.whole for at, piece in pieces.items()}
        self.shape = layout.own_shape(rank, shape)
        self._only = next(iter(self.own)) if len(self.own) == 1 else None

    def cut(self, block: torch.Tensor) -> Blocks:
        """The blocks by name, each contiguous."""
        if self._only is not None:
            return {self._only: block.contiguous()}
        return {name: block[at].contiguous() for name, at in self.own.items()}

    def take(self, blocks: Blocks) -> torch.Tensor:
        """Take the blocks out of those of a rank, and put them together."""
        if self._only is not None:
            return blocks.pop(self._only)
        found = [(at, blocks.pop(name)) for name, at in self.own.items()]
        whole = found[0][1].new_empty(self.shape)
        for at, block in found:
            whole[at] = block
        return whole


def scatter_tensor(mesh: Mesh, layout: Layout, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor, copied to the mesh's device in the mesh's dtype.

    Raises `ShapeError` where the layout's grid does not divide the tensor.
    """
    shape = tuple(whole.shape)
    check_divided(shape, layout.grid, "tensor")
    parts = Parts("tensor", resting(layout, "tensor"), mesh.rank, shape)
    part = torch.empty(parts.shape, device=mesh.device, dtype=mesh.dtype)
    for name, at in parts.own.items():
        part[at] = whole[parts.whole[name]]
    return part


def gather_tensor(mesh: Mesh, layout: Layout, part: torch.Tensor) -> torch.Tensor | None:
    """The whole tensor on rank 0, None elsewhere; a collective call.

    `part` has the mesh's dtype, or that of its sums and statistics.
    """
    shape = layout.whole_shape(mesh.rank, part.shape)
    origin = (0,) * len(shape)
    on_root = Layout((1,) * len(shape), ((origin,), *((),) * (mesh.ranks - 1)))
    program = lower_move(layout, on_root, shape, wide=part.dtype != mesh.dtype)
    parts = Parts("x", layout, mesh.rank, shape)
    blocks = Executor(mesh, program, kind="gather")(parts.cut(part.detach()))
    return None if mesh.rank else next(iter(blocks.values()))
