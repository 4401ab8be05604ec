"""Liveness: which blocks the lowering keeps, defined once, for concrete holdings and for symbols.

A sweep posts what its first step needs of the operands, and waits. Then every step

1. posts the operands of the next step, or at the last one those with which the next phase starts,
   and the partial sums that move on: all arrive in buffers separate from those in use;
2. multiplies, into a scratch where the sum is still in flight to here;
3. waits, adds the scratches to their sums, and frees the sums that have left;
4. frees the operands that are not `kept`;
5. sends the sums that it has finished to their homes. A home that has a part itself and receives
   one other takes it in a scratch; a reduce-scatter and a reduce need none.

After its last step the sweep frees what no later phase reads (`USED_UP`).

A rule gives parts: blocks of a tensor that the map names. A reader knows the blocks of each part:
`lowering` as sets on every rank, `verify.formulas` as digits for any device of any mesh.

For example, forward of `P2x2` on device (0, 0): at t=0 it multiplies I[0,0], and I[0,1] arrives in
a second buffer. After the product I[0,0] is freed, since the next step needs `When.NEXT`, I[0,1],
and no more. So two blocks of I are live during step 0 and one after it. SUMMA frees the copy of a
panel in the same way, but never the block that is at home (`When.REST`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from primepar.schedule.operators import PHASES, PRODUCTS, Phase

Sweep = tuple[Phase, ...]
"""Phases that run together."""


class When(Enum):
    """When a device has blocks in a phase: all through it, or with its product of a step."""

    REST = auto()
    """All through the phase: at home, or kept from forward."""
    FIRST = auto()
    BEFORE = auto()
    """The step before this one."""
    NOW = auto()
    NEXT = auto()
    LAST = auto()
    EVERY = auto()


class LivePart(NamedTuple):
    """The blocks of a tensor that a device has `when`."""

    when: When
    phase: Phase
    tensor: str


Parts = tuple[LivePart, ...]
"""A union; the blocks of different parts may be the same."""
AWAITED: dict[Phase, dict[str, Phase]] = {
    "forward": {"I": "forward", "W": "forward"},
    "backward": {"I": "gradient", "W": "backward"},
    "gradient": {"I": "gradient", "W": "forward", "dO": "gradient"},
}
"""Before a phase: operand -> the phase that reads it next, where it is due; dO is where O ends."""
USED_UP = (("backward", "W"), ("gradient", "I"), ("gradient", "dO"))
"""(phase, operand): what is left of it, copies and gradients, is freed after that phase."""


def sweeps(shares_output_gradient: bool, phases: tuple[Phase, ...] = PHASES) -> list[Sweep]:
    """Phases in order; backward and gradient together where they share the hops of dO."""
    if shares_output_gradient and {"backward", "gradient"} <= set(phases):
        return [*((phase,) for phase in phases[:-2]), phases[-2:]]
    return [(phase,) for phase in phases]


def readers(sweep: Sweep) -> dict[str, Phase]:
    """Operand -> the first phase of the sweep that reads it."""
    return {tensor: phase for phase in reversed(sweep) for tensor in PRODUCTS[phase].reads}


def kept(
    phase: Phase,
    tensor: str,
    following: Phase | None,
    *,
    last: bool,
    keeps: bool,
    homes: bool,
    realigns: bool,
) -> Parts:
    """What stays of an operand after a step, which is the `last` or not.

    `following` is the phase that uses it next, None if none does; `keeps`: copies that forward
    received are kept; `homes`: tensors have homes; `realigns`: blocks are sent during the last step
    for the phase `following`.
    """
    rest = LivePart(When.REST, phase, tensor)
    if keeps and phase == "forward":
        return rest, LivePart(When.NOW, phase, tensor)
    if not last:
        return rest, LivePart(When.NEXT, phase, tensor)
    if following is None or homes:
        return (rest,)
    return (
        LivePart(When.FIRST, following, tensor) if realigns else LivePart(When.NOW, phase, tensor),
    )
