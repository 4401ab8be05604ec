"""Linear operators: one matrix product per sub-operator, transposed as the dims of its blocks need.

Legend: R rows and C columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from primepar.operators import Site, StepInputs
from primepar.schedule.signature import Template

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], None]
View = Callable[[torch.Tensor], torch.Tensor]


def multiply(
    site: Site, inputs: StepInputs, into: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> None:
    """Write the product of two blocks in the dims of the phase; dims B, M, K are `[B, M, C]`."""
    swap, left, right = operands(site.phase.reads, site.phase.writes)
    a, b = (second, first) if swap else (first, second)
    product(left(a), right(b), as_matrix(into), False, 1.0)


def product(
    left: torch.Tensor, right: torch.Tensor, into: torch.Tensor, begun: bool, scale: float
) -> None:
    """Compute `into = scale * left @ right`, or `into += scale * left @ right` if `begun`."""
    if into.dtype != left.dtype:
        _add_wide(left, right, into, begun, scale)
    elif begun or scale != 1.0:
        into.addmm_(left, right, beta=float(begun), alpha=scale)
    else:
        torch.mm(left, right, out=into)


def _add_wide(
    left: torch.Tensor, right: torch.Tensor, into: torch.Tensor, begun: bool, scale: float
) -> None:
    """Add a product of half precision to a float32 sum, without rounding it between.

    A GPU multiplies in half precision and gives float32, from torch 2.11 on. It has no such product
    on CPUs, where the operands are converted: the product of two bfloat16 is exact in
    float32.
    """
    beta, alpha = float(begun), scale
    if into.is_cuda:
        kinds = {"out_dtype": into.dtype, "beta": beta, "alpha": alpha}
        torch.addmm(into, left, right, out=into, **kinds)  # type: ignore[call-overload]
    elif begun:
        into.addmm_(left.to(into.dtype), right.to(into.dtype), alpha=alpha)
    else:
        torch.mm(left.to(into.dtype), right.to(into.dtype), out=into).mul_(alpha)


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
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    y_RC: torch.Tensor,
    bias_C: torch.Tensor,
) -> None:
    """Write the rows plus the bias."""
    torch.add(y_RC, bias_C, out=into_RC)


def bias_gradient(
    site: Site, inputs: StepInputs, into_C: torch.Tensor, dy_RC: torch.Tensor
) -> None:
    """Write the sum of the block's rows, `[C]`, in float32 at least."""
    torch.sum(dy_RC, 0, dtype=into_C.dtype, out=into_C)
