"""The steps of a sweep: what moves in each, for every reader of a movement.

A sweep runs some phases step by step together. A hop that several of them need is made once. The
program of a sequence, its cost and what it sends are read from these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from primepar.schedule.movement import Hop, Movement, Return
from primepar.schedule.operators import PRODUCTS, Phase


class SweepStep(NamedTuple):
    """What moves in one step; hops are made while its products run."""

    operands: tuple[Hop, ...]
    """For the next step, or for a later phase."""
    partials: tuple[Hop, ...]
    """Sums of the steps before, which are added to after the step."""
    returns: tuple[tuple[Return, ...], ...]
    """Of each phase the sums that the step finishes."""


class Sweep(NamedTuple):
    """Phases that run together: the hops before their first step, and their steps."""

    phases: tuple[Phase, ...]
    opening: tuple[Hop, ...]
    steps: tuple[SweepStep, ...]


def sweep_of(movement: Movement, phases: tuple[Phase, ...]) -> Sweep:
    """The sweep of some phases."""
    moved = [movement.moved(phase) for phase in phases]
    steps = (
        SweepStep(
            _once(phase.operands[step] for phase in moved),
            _once(phase.partials[step] for phase in moved),
            tuple(phase.returns[step] for phase in moved),
        )
        for step in range(movement.sequence.steps)
    )
    return Sweep(phases, _once(phase.prologue for phase in moved), tuple(steps))


def sweeps(movement: Movement, phases: tuple[Phase, ...]) -> list[tuple[Phase, ...]]:
    """Phases in order; backward and gradient together where they share the hops of dO."""
    if {"backward", "gradient"} <= set(phases) and movement.shares_output_gradient:
        return [*((phase,) for phase in phases[:-2]), phases[-2:]]
    return [(phase,) for phase in phases]


def readers(movement: Movement, phases: tuple[Phase, ...], step: int) -> Callable[[Hop], bool]:
    """Whether the source of a hop multiplies its block in a step."""

    def is_read(hop: Hop) -> bool:
        reading = (phase for phase in phases if hop.tensor in PRODUCTS[phase].reads)
        held = (movement.held(phase, hop.tensor, step)[hop.source] for phase in reading)
        return any(hop.index in blocks for blocks in held)

    return is_read


def _once(hops: Iterable[tuple[Hop, ...]]) -> tuple[Hop, ...]:
    """Hops of several phases in order, those that they share once."""
    return tuple(dict.fromkeys(hop for some in hops for hop in some))
