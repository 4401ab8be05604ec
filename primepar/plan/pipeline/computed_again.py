"""Which operators of a layer run again in backward, instead of being kept from forward.

The choice is that of a step's program. `full` keeps the input of a layer. It runs again what some
operator of the layer reads that keeps its input for backward: norms, linear operators, attention
and activations. So the last linear operator of a layer, whose output is only added, does not run
again. `selective` runs norms and activations again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from primepar.models.graph import Operator
from primepar.plan.pipeline.training_options import Recompute

CHEAP = ("norm", "activation")
"""Kinds of operators that selective recomputation runs again."""
_KEEP = (*CHEAP, "linear", "attention")
"""Kinds of operators that keep their input, or something computed of it, for backward."""


@lru_cache(maxsize=256)
def computed_again(operators: tuple[Operator, ...], recompute: Recompute) -> frozenset[str]:
    """The names of the operators that run again."""
    if recompute == "none":
        return frozenset()
    layers = [operator for operator in operators if operator.name.startswith("blocks.")]
    if recompute == "selective":
        return frozenset(operator.name for operator in layers if operator.kind in CHEAP)
    again: set[str] = set()
    for operator in reversed(layers):
        if operator.kind in _KEEP or operator.name in again:
            again |= {name for name in operator.inputs if layer(name) == layer(operator.name)}
    return frozenset(again)


def sources_of_cheap(operators: Iterable[Operator]) -> frozenset[str]:
    """Linear operators of layers whose input is what a norm or an activation made."""
    named = {operator.name: operator for operator in operators}
    return frozenset(
        operator.name for operator in named.values()
        if operator.kind == "linear" and operator.name.startswith("blocks.")
        and named[operator.inputs[0]].kind in CHEAP
    )  # fmt: skip


def layer(name: str) -> str:
    """The layer of an operator: `blocks.3` of `blocks.3.qkv`."""
    return ".".join(name.split(".")[:2])
