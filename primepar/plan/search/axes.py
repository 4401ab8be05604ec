"""Seconds of a step by axis: computing, and what of communication no product hides.

Tensor parallelism is in the operators and between them. Context parallelism is what attention
gathers, expert parallelism what experts exchange, data parallelism the sums of gradients. Waiting
for other stages is pipeline parallelism.

Example: of `M2,megatron-sp` the gathers and scatters of fc1 and fc2 are on the axis tensor, and the
sums of weight gradients over the two copies on the axis data. Why one plan beats another is the
difference of these terms, the largest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

AXES: Final = ("computing", "tensor", "context", "experts", "data", "pipeline")
_OWN: Final = {"attention": "context", "experts": "experts"}
"""Operators whose communication is that of an axis other than tensor."""
LEAST: Final = 1e-4
"""Share of a step below which a difference is no reason."""


class Priced(Protocol):
    """An operator of several equal layers, with the terms of its `Cost` in one of them."""

    @property
    def operator(self) -> str:
        """Its name, with that of the layers."""

    @property
    def layers(self) -> int:
        """Number of the layers."""

    @property
    def terms(self) -> Mapping[str, float]:
        """Terms of `Cost` of one of them."""

    @property
    def moving(self) -> float:
        """Seconds of redistribution before one of them."""


def seconds_by_axis(choices: Iterable[Priced], waiting: float = 0.0) -> dict[str, float]:
    """Seconds of all operators of a plan by axis; they add up to the step."""
    seconds = dict.fromkeys(AXES, 0.0)
    for choice in choices:
        terms, axis = choice.terms, _OWN.get(choice.operator.rpartition(".")[2], "tensor")
        seconds["computing"] += choice.layers * (terms["compute"] + terms["update"])
        seconds[axis] += choice.layers * terms["communication"]
        seconds["tensor"] += choice.layers * choice.moving
        seconds["data"] += choice.layers * terms["reduction"]
    return seconds | {"pipeline": waiting}


def reasons(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[tuple[str, float]]:
    """Axes in which two plans differ, with how many seconds more ours takes, the largest first."""
    least = LEAST * sum(ours.values())
    more = [(axis, ours[axis] - theirs[axis]) for axis in AXES]
    return sorted((term for term in more if abs(term[1]) > least), key=lambda term: -abs(term[1]))
