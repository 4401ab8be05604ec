"""The NumPy kernels: one pure function for each phase of a training step.

A kernel is `kernel(site, inputs, *blocks) -> block`. It is dense: the site gives the extents of its
blocks in the full tensors, and no rank, mesh or message. A sum over columns, rows or the vocabulary
is that of its blocks alone; the program reduces it over the ranks. Operands are never changed.

Legend: M rows, N input and K output columns of a linear operator, H hidden columns, C columns of
qkv, V vocabulary, S positions of keys and values, G key/value groups. A leading `d` marks the
gradient of the loss with respect to that array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from primepar.reference.kernels.attention import ATTENTION
from primepar.reference.kernels.elementwise import ELEMENTWISE
from primepar.reference.kernels.embedding import EMBEDDING
from primepar.reference.kernels.extents import Kernel
from primepar.reference.kernels.linear import LINEAR
from primepar.reference.kernels.loss import LOSS
from primepar.reference.kernels.norm import NORM
from primepar.reference.kernels.online import ONLINE, added_states
from primepar.reference.kernels.regression import REGRESSION
from primepar.reference.kernels.update import UPDATE
from primepar.reference.oracle.layers import Array

KERNELS: Mapping[str, Kernel] = {
    **LINEAR,
    **NORM,
    **ATTENTION,
    **ONLINE,
    **ELEMENTWISE,
    **EMBEDDING,
    **LOSS,
    **UPDATE,
    **REGRESSION,
}
"""`Signature.kernel` -> the function that computes it."""
SUMS: Mapping[str, Callable[..., Array]] = {"online.part": added_states}
"""Kernel -> how blocks of its terms are added, if not element by element."""

__all__ = ["KERNELS", "SUMS", "Kernel"]
