"""All claims about the formulas of a primitive, which are asked once it is proved to be right."""

from __future__ import annotations

from collections.abc import Iterator

from primepar.verify.formulas.blocks import Blocks
from primepar.verify.formulas.memory import memory
from primepar.verify.formulas.sums import Sums
from primepar.verify.formulas.traffic import traffic
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.symbolic import SymbolicMap


def formula_claims(symbolic: SymbolicMap, deadline: float) -> Iterator[Claim]:
    """Claims about memory and traffic, those that the primitive has a formula of.

    Fits and cases ask Z3 until the `deadline`, a time of `perf_counter`. What cannot be claimed is
    a claim with a reason; none of these claims is about whether the primitive is right.
    """
    blocks = Blocks(symbolic, deadline)
    sums = Sums(blocks)
    yield from memory(blocks, sums)
    yield from traffic(blocks, sums)
