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
Operands = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def multiply(
    site: Site, inputs: StepInputs, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """Return the product of two blocks in the dims of the phase; dims B, M, K are `[B, M, C]`."""
    reads, writes = site.phase.reads, site.phase.writes
    left, right = _operands(reads, writes)(first, second)
    result = left @ right
    given = {
        dim: size
        for template, block in zip(reads, (first, second), strict=True)
        for (dim, _), size in zip(template.entries, block.shape, strict=True)
    }
    return result.view([given[dim] for dim, _ in writes.entries])


def product(site: Site) -> Product:
    """Return the product as `f(first, second, into, begun, scale)`.

    It computes `into = scale * product`, or `into += scale * product` if `begun`. The rows of
    `into` must be viewable as one dim.
    """
    operands = _operands(site.phase.reads, site.phase.writes)

    def write(
        first: torch.Tensor, second: torch.Tensor, into: torch.Tensor, begun: bool, scale: float
    ) -> None:
        left, right = operands(first, second)
        into = into.view(-1, into.shape[-1]) if into.dim() > 2 else into
        if into.dtype != left.dtype:
            _add_wide(left, right, into, begun, scale)
        elif begun or scale != 1.0:
            into.addmm_(left, right, beta=float(begun), alpha=scale)
        else:
            torch.mm(left, right, out=into)

    return write


def _add_wide(
    left: torch.Tensor, right: torch.Tensor, into: torch.Tensor, begun: bool, scale: float
) -> None:
    """Add a product of half precision to a float32 sum, without rounding it between.

    A GPU multiplies in half precision and gives float32; this was never run. torch has no such
    product on CPUs, where the operands are converted: the product of two bfloat16 is exact in
    float32.
    """
    beta, alpha = float(begun), scale
    if into.is_cuda:
        kinds = {"out_dtype": into.dtype, "beta": beta, "alpha": alpha}
        torch.addmm(into, left, right, out=into, **kinds)  # type: ignore[call-overload]
    else:
        into.addmm_(left.to(into.dtype), right.to(into.dtype), beta=beta, alpha=alpha)


@lru_cache(maxsize=4096)
def _operands(reads: tuple[Template, ...], writes: Template) -> Operands:
    """Return the function that maps two blocks to the left and the right matrix of a product.

    The left matrix has the rows of the result, the right one its columns. B and M together are
    rows.
    """
    rows, columns = _sides(writes)
    first, second = map(_sides, reads)
    swap = rows not in first
    if swap:
        first, second = second, first
    turn_left, turn_right = first[1] == rows, second[0] == columns

    def operands(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = (block if block.dim() == 2 else block.flatten(0, -2) for block in (a, b))
        left, right = (b, a) if swap else (a, b)
        return left.t() if turn_left else left, right.t() if turn_right else right

    return operands


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
