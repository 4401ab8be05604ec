"""A tensor from one layout to another, and between its whole and its blocks.

A device holds one block of a tensor at rest, or several: some slices of each dim, put together in
their order. Where two layouts cut a tensor otherwise they meet in cells, into which a device's part
is cut before the hops and from which it is put together after them.
"""

from __future__ import annotations

from itertools import product

import torch

from primepar.distributed.buffers import BufferPool, Shape
from primepar.distributed.executor import Executor
from primepar.distributed.mesh import Mesh
from primepar.errors import SequenceError, ShapeError
from primepar.schedule import Layout, redistribution
from primepar.schedule.layout import Cells
from primepar.schedule.operators import block_name
from primepar.schedule.program import Instruction, ISend


def resting(layout: Layout, tensor: str) -> Layout:
    """The same layout. Raises `SequenceError` unless every device holds a rectangle of blocks."""
    for rank, blocks in enumerate(layout.held):
        slices = [layout.slices(rank, dim) for dim in range(len(layout.grid))]
        if not blocks or set(blocks) != set(product(*slices)):
            raise SequenceError(
                f"tensor {tensor}: expected on every device a block, or all blocks of some slices "
                f"of each dim, got {', '.join(map(str, blocks)) or 'none'} on device {rank}: "
                "choose a sequence that leaves such"
            )
    return layout


def check_divided(shape: Shape, grid: tuple[int, ...], what: str) -> None:
    """Raise `ShapeError` where the grid does not divide `shape`."""
    for dim, (size, slices) in enumerate(zip(shape, grid, strict=True)):
        if size % slices:
            padded = -(-size // slices) * slices
            raise ShapeError(
                f"{what}: expected dim {dim} to be a multiple of its {slices} slices, got {size}: "
                f"pad it to {padded}"
            )


class Redistribution:
    """Takes this rank's part of a tensor of `shape` from layout `source` to `target`.

    Inward, a caller's block goes in and a block of the pool comes out, or, where `borrowed`, what
    went in or a view of it. `outward`, a block of the pool goes in and the caller keeps what comes
    out; where it `passes`, the block that goes in is the one that comes out, and must be the
    caller's already. Raises `SequenceError` or `ShapeError`.
    """

    def __init__(
        self,
        mesh: Mesh,
        source: Layout,
        target: Layout,
        tensor: str,
        shape: Shape,
        *,
        outward: bool = False,
    ) -> None:
        cells = Cells.of(resting(source, tensor), resting(target, tensor))
        check_divided(shape, cells.grid, tensor)
        self.still, self.pool, self.outward = source == target, mesh.pool, outward
        here, there = (cells.pieces(each, mesh.rank, shape) for each in (source, target))
        sizes = {block_name(tensor, at): piece.shape for at, piece in (here | there).items()}
        self._cut = {block_name(tensor, at): piece.own for at, piece in here.items()}
        self._join = {block_name(tensor, at): piece.own for at, piece in there.items()}
        self._cuts, self._joins = len(self._cut) > 1, len(self._join) > 1
        self.passes = self.still or (not self._cuts and self._cut.keys() == self._join.keys())
        self._result = target.own_shape(mesh.rank, shape)
        self._new = self.pool.fresh if outward else self.pool.acquire
        program = redistribution(source, target, tensor)
        widths = [piece.own[1:] for piece in here.values()]
        in_rows = all(width == widths[0] for width in widths)
        self._copied = self._to_copy(program.programs[mesh.rank], in_rows)
        pools = set(self._cut) if outward and not self._cuts else self._copied
        leaving = self._join if outward and not self._joins else ()
        memory = Memory(self.pool, sizes.__getitem__, set(self._cut) - pools, leaving)
        self._run = Executor(mesh, program, memory, "redistribution")
        self.borrowed = not outward and (
            self.still or (not self._joins and set(self._join) <= self._run.borrowed)
        )

    def _to_copy(self, instructions: tuple[Instruction, ...], in_rows: bool) -> set[str]:
        """Pieces of a cut block that are sent or stay, and cannot do so as views of it."""
        if not self._cuts:
            return set()
        sent = {node.block for node in instructions if isinstance(node, ISend)}
        stays = set() if self._joins or (in_rows and not self.outward) else set(self._join)
        return set(self._cut) & ((set() if in_rows else sent) | stays)

    def __call__(self, block: torch.Tensor) -> torch.Tensor:
        """Redistribute a contiguous block; a collective call."""
        if self.still:
            return block
        blocks = {name: block[place] for name, place in self._cut.items()}
        for name in self._copied:
            stays = name in self._join and not self._joins
            room = (self._new if stays else self.pool.acquire)(tuple(blocks[name].shape))
            blocks[name] = room.copy_(blocks[name])
        self._run(blocks)
        result = self._joined(blocks) if self._joins else blocks.popitem()[1]
        if self.outward and self._cuts:
            self.pool.release(block)
        return result

    def _joined(self, blocks: dict[str, torch.Tensor]) -> torch.Tensor:
        whole = self._new(self._result)
        for name, place in self._join.items():
            whole[place] = blocks[name]
            if name not in self._run.borrowed:
                self.pool.release(blocks[name])
        return whole


def scatter_tensor(mesh: Mesh, layout: Layout, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor, copied to the mesh's device in the mesh's dtype.

    Raises `ShapeError` where the layout's grid does not divide the tensor.
    """
    shape, rank = tuple(whole.shape), mesh.rank
    check_divided(shape, layout.grid, "tensor")
    pieces = Cells.of(resting(layout, "tensor")).pieces(layout, rank, shape)
    own_shape = layout.own_shape(rank, shape)
    part = torch.empty(own_shape, device=mesh.device, dtype=mesh.dtype)
    for piece in pieces.values():
        part[piece.own] = whole[piece.whole]
    return part


def gather_tensor(mesh: Mesh, layout: Layout, part: torch.Tensor) -> torch.Tensor | None:
    """The whole tensor on rank 0, None elsewhere; a collective call."""
    everything = tuple(product(*map(range, layout.grid)))
    on_root = Layout(layout.grid, (everything, *((),) * (mesh.ranks - 1)))
    cells, shape = Cells.of(layout, on_root), layout.whole_shape(mesh.rank, part.shape)
    own, wanted = (
        {block_name("O", at): piece for at, piece in cells.pieces(each, mesh.rank, shape).items()}
        for each in (layout, on_root)
    )
    sizes = {name: piece.shape for name, piece in (own | wanted).items()}
    memory = Memory(BufferPool(part.device, part.dtype), sizes.__getitem__, own, wanted)
    run = Executor(mesh, redistribution(layout, on_root), memory, "gather")
    blocks = run({name: part.detach()[piece.own].contiguous() for name, piece in own.items()})
    if mesh.rank:
        return None
    whole = part.new_empty(shape, requires_grad=False)
    for name, piece in wanted.items():
        whole[piece.whole] = blocks[name]
    return whole
