"""Linear operators: one matrix product per sub-operator, transposed as the dims of its blocks need.

Legend: R rows and C columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from primepar.distributed.kernels.common import working_dtype
from primepar.operators import Site, StepInputs
from primepar.schedule.signature import Template

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], None]
View = Callable[[torch.Tensor], torch.Tensor]


def multiply(
    site: Site, inputs: StepInputs, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """Return the product of two blocks in the dims of the phase; dims B, M, K are `[B, M, C]`."""
    reads, writes = site.phase.reads, site.phase.writes
    swap, left, right = operands(reads, writes)
    a, b = (second, first) if swap else (first, second)
    result = left(a) @ right(b)
    given = {
        dim: size
        for template, block in zip(reads, (first, second), strict=True)
        for (dim, _), size in zip(template.entries, block.shape, strict=True)
    }
    return result.view([given[dim] for dim, _ in writes.entries])


def product(
    left: torch.Tensor, right: torch.Tensor, into: torch.Tensor, begun: bool, scale: float
) -> None:
    """Compute `into = scale * left @ right`, or `into += scale * left @ right` if `begun`."""
    if begun or scale != 1.0:
        into.addmm_(left, right, beta=float(begun), alpha=scale)
    else:
        torch.mm(left, right, out=into)


def as_matrix(block: torch.Tensor) -> torch.Tensor:
    """Return a block as a matrix whose rows are all its dims but the last."""
    return block if block.dim() == 2 else block.view(-1, block.shape[-1])


@lru_cache(maxsize=4096)
def operands(reads: tuple[Template, ...], writes: Template) -> tuple[bool, View, View]:
    """Return how two blocks become the matrices of a product.

    The left matrix has the rows of the result, the right one its columns; B and M together are
    rows. The first of the result is true if the second block is the left one. The functions map the
    left and the right block to their matrices.
    """
    rows, columns = _sides(writes)
    first, second = map(_sides, reads)
    swap = rows not in first
    if swap:
        first, second = second, first
    left = _turned if first[1] == rows else as_matrix
    right = _turned if second[0] == columns else as_matrix
    return swap, left, right


def _turned(block: torch.Tensor) -> torch.Tensor:
    return as_matrix(block).t()


def _sides(template: Template) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the dims of the rows and of the columns of a block as a matrix."""
    *rows, column = (dim for dim, _ in template.entries)
    return tuple(rows), (column,)


def add_bias(
    site: Site, inputs: StepInputs, y_RC: torch.Tensor, bias_C: torch.Tensor
) -> torch.Tensor:
    """Return the rows plus the bias."""
    return y_RC + bias_C


def bias_gradient(site: Site, inputs: StepInputs, dy_RC: torch.Tensor) -> torch.Tensor:
    """Return the sum of the block's rows, `[C]`, in float32 at least."""
    return dy_RC.sum(0, dtype=working_dtype(dy_RC.dtype))
