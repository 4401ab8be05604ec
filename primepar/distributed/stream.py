"""The model's stream of activations: rows of whole sequences, columns of hidden, one block each.

It lies as the linear operators leave their output. Ranks that hold other columns of the same rows
share the sums of a row; ranks that hold other rows of the same columns share the gradients of what
belongs to the columns. A rank whose block is a copy of another's is in other groups than that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from primepar.distributed.linear import rest
from primepar.distributed.mesh import Mesh, Ranks
from primepar.schedule import Layout


@dataclass(frozen=True)
class Stream:
    """Where this rank's block of every activation lies. Groups are made: a collective call."""

    mesh: Mesh

    def __post_init__(self) -> None:
        lines = (*self.layout.peers_along(0), *self.layout.peers_along(1))
        self.mesh.ensure_groups(("world", line) for line in lines)

    @cached_property
    def layout(self) -> Layout:
        """Layout over (rows, columns)."""
        return rest(self.mesh, "forward", "O", last=True)

    @cached_property
    def row_slices(self) -> int:
        """Number of slices of the rows."""
        return self.layout.grid[0]

    @cached_property
    def column_slices(self) -> int:
        """Number of slices of the columns."""
        return self.layout.grid[1]

    @cached_property
    def same_columns(self) -> Ranks:
        """Ranks that together hold every row of this rank's columns once."""
        return self._line(0)

    @cached_property
    def same_rows(self) -> Ranks:
        """Ranks that together hold every column of this rank's rows once."""
        return self._line(1)

    def _line(self, dim: int) -> Ranks:
        return next(line for line in self.layout.peers_along(dim) if self.mesh.rank in line)

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a tensor with all of them."""
        return tensor.chunk(self.row_slices)[self.layout.held[self.mesh.rank][0][0]]

    def first_column(self, columns: int) -> int:
        """Where this rank's columns begin, if it has `columns` of them."""
        return self.layout.held[self.mesh.rank][0][1] * columns

    def of_columns(self) -> Layout:
        """Layout of a parameter of one dim that belongs to the columns."""
        held = tuple(((column,),) for ((_, column),) in self.layout.held)
        return Layout((self.column_slices,), held)

    def of_table(self) -> Layout:
        """Layout of a table whose columns are the stream's."""
        held = tuple(((0, column),) for ((_, column),) in self.layout.held)
        return Layout((1, self.column_slices), held)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums over rows, columns or the vocabulary are held in: float32 for half precision."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
