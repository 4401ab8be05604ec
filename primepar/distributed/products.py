"""Sub-operators on blocks: one matrix product each, turned as the dims of its tensors tell."""

from __future__ import annotations

from collections.abc import Callable

import torch

from primepar.schedule.operators import Dim, tensor_dims

Dims = tuple[Dim, ...]
Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], None]


def _matrix_dims(tensor: str) -> tuple[Dims, Dims]:
    """Row and column dims of a tensor's blocks as matrices: B and M are rows together."""
    dims = tensor_dims(tensor)
    return dims[:-1], dims[-1:]


def _matrix(block: torch.Tensor) -> torch.Tensor:
    return block if block.dim() == 2 else block.flatten(0, -2)


def multiply(reads: tuple[str, str], writes: str) -> Multiply:
    """The product of two tensors' blocks: `into = first second`, or `into +=` where it is begun.

    Which operand stands left, and which is transposed, follows from the dims: the left one has
    the output's rows, the right one its columns. Returns `f(first, second, into, begun)`.
    """
    rows, columns = _matrix_dims(writes)
    swap = rows not in _matrix_dims(reads[0])
    left, right = reversed(reads) if swap else reads
    turn_left = _matrix_dims(left)[1] == rows
    turn_right = _matrix_dims(right)[0] == columns

    def product(first: torch.Tensor, second: torch.Tensor, into: torch.Tensor, begun: bool) -> None:
        a, b = _matrix(first), _matrix(second)
        if swap:
            a, b = b, a
        a, b = a.t() if turn_left else a, b.t() if turn_right else b
        if begun:
            _matrix(into).addmm_(a, b)
        else:
            torch.mm(a, b, out=_matrix(into))

    return product
