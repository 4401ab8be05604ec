"""Formulas of memory and traffic, proved for every side once a primitive is proved to be right.

Read in this order: `polynomial` and `amount` are what is counted in, and what a formula is called
with; `blocks` says where blocks are, and how many; `evaluate` and `sets` count sets of (device,
step, block); `sums` says what becomes of partial sums; `traffic` counts what is sent; `alive` and
`memory` count what is alive.
"""

from __future__ import annotations

from collections.abc import Iterator

from primepar.verify.formulas.blocks import Blocks
from primepar.verify.formulas.memory import memory
from primepar.verify.formulas.traffic import traffic
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.symbolic import SymbolicMap


def formula_claims(symbolic: SymbolicMap, deadline: float) -> Iterator[Claim]:
    """Claims about memory and traffic, those that the primitive has a formula of.

    They hold of a primitive that is right. Cases and rules ask Z3 until the `deadline`, a time of
    `perf_counter`; what cannot be claimed is a claim with a reason.
    """
    blocks = Blocks(symbolic, deadline)
    yield from memory(blocks)
    yield from traffic(blocks)
