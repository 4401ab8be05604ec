"""Where an activation lies: some of its rows and columns on every rank, perhaps in copies.

Ranks that hold other columns of the same rows share the sums of a row; ranks that hold other rows
of the same columns share the gradients of what belongs to the columns. A rank that holds a copy of
another's is in other groups than that one, so no sum takes a term twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from primepar.distributed.mesh import Mesh, Ranks
from primepar.schedule import Layout
from primepar.schedule.operators import Index


@dataclass(frozen=True)
class Stream:
    """A layout whose first dim is the rows, on a mesh. Groups are made: a collective call."""

    mesh: Mesh
    layout: Layout

    def __post_init__(self) -> None:
        lines = (*self.layout.peers_along(0), *self.layout.peers_along(1))
        self.mesh.ensure_groups(("world", line) for line in lines)

    @property
    def block(self) -> Index:
        """This rank's block, the only one where no linear operator leaves it."""
        (block,) = self.layout.held[self.mesh.rank]
        return block

    @cached_property
    def same_columns(self) -> Ranks:
        """Ranks that together hold every row of this rank's columns once."""
        return self._line(0)

    @cached_property
    def same_rows(self) -> Ranks:
        """Ranks that together hold every slice of dim 1 of this rank's rows once."""
        return self._line(1)

    def _line(self, dim: int) -> Ranks:
        lines = self.layout.peers_along(dim)
        return tuple(sorted(next(line for line in lines if self.mesh.rank in line)))

    def rows(self, every: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a tensor with all of them, sequence after sequence."""
        return every.chunk(self.layout.grid[0])[self.block[0]]

    def elements(self, x_RC: torch.Tensor) -> torch.Tensor:
        """Index of every element that this rank has in the whole activation, row by row."""
        rank = self.mesh.rank
        shape = self.layout.whole_shape(rank, x_RC.shape)
        row_R, column_C = (
            torch.cat([torch.arange(at.start, at.stop, device=x_RC.device) for at in parts])
            for parts in (self.layout.elements(rank, dim, size) for dim, size in enumerate(shape))
        )
        return row_R[:, None] * shape[1] + column_C


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums over rows, columns or the vocabulary are held in: float32 for half precision."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
