"""Which operators of a layer run again in backward, instead of being kept from forward.

The choice is that of a step's program. A plan allows some operators of a layer to run again: with
`full` all of them, with `selective` norms and activations. Of these, those run that something needs
in backward: an operator that keeps its input for backward, or one that runs again itself. A norm
needs itself, because it keeps the normalized rows. So the last linear operator of a layer, whose
output is only added, does not run again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from primepar.models.graph import Operator
from primepar.plan.pipeline.training_options import Recompute
from primepar.plan.pipeline_layout import layer_of, layer_operator

CHEAP = ("norm", "activation")
"""Kinds of operators that selective recomputation runs again."""
KEEP_INPUT = ("linear", "attention", "activation")
"""Kinds of operators that keep their input for backward."""


class Repeated(NamedTuple):
    """Names of the operators of layers that may run again, and of those that do."""

    allowed: frozenset[str]
    again: frozenset[str]
    received: frozenset[str]
    """Operators whose input is redistributed again."""
    sends: bool
    """Whether messages are sent again."""


@lru_cache(maxsize=4096)
def repeated(operators: tuple[Operator, ...], recompute: Recompute) -> Repeated:
    """What runs again of some operators in the order of execution."""
    allowed = frozenset(
        operator.name for operator in operators
        if layer_of(operator.name) is not None and _allows(recompute, operator)
    )  # fmt: skip
    sends = recompute not in ("none", "selective")
    again: set[str] = set()
    needed: set[str] = set()
    for operator in reversed(operators):
        name = operator.name
        if name in allowed and (operator.kind == "norm" or name in needed):
            again.add(name)
        if operator.kind in KEEP_INPUT or name in again:
            layer = layer_of(name)
            needed |= {source for source in operator.inputs if layer_of(source) == layer}
    reads = {operator.name for operator in operators if operator.kind in KEEP_INPUT} | again
    received = allowed & reads if sends else frozenset[str]()
    return Repeated(allowed, frozenset(again), received, sends)


def _allows(recompute: Recompute, operator: Operator) -> bool:
    if isinstance(recompute, tuple):
        return layer_operator(operator.name) in recompute
    return recompute == "full" or (recompute == "selective" and operator.kind in CHEAP)
