"""What kernels share: the numbers of the elements of a block, and the dropout of these."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.oracle.layers import Array, Tokens, dropout, kept_elements
from primepar.schedule.meaning import Box

Kernel = Callable[..., Array]


def numbers(box: Box, dim: int) -> Tokens:
    """Numbers in the whole tensor of the elements of a block along a dim."""
    return np.arange(*box[dim])


def inside(numbers_M: Tokens, box: Box, dim: int) -> tuple[Tokens, Tokens]:
    """Which of some numbers are in a block along a dim, and which of its elements they are."""
    first, end = box[dim]
    (here,) = np.nonzero((numbers_M >= first) & (numbers_M < end))
    return here, numbers_M[here] - first


def dropped(
    site: Site, inputs: StepInputs, x_MK: Array, box: Box, operator: str, probability: float
) -> Array:
    """A block of the output of an operator after its dropout; alike its gradient, in backward."""
    rows_M, columns_K = numbers(box, 0), numbers(box, 1)
    width = site.operator.K
    kept_MK = kept_elements(inputs.draw, probability, operator, rows_M, columns_K, width)
    return dropout(x_MK, kept_MK, probability)
