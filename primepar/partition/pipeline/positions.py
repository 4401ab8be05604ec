"""GPipe and 1F1B in closed form: the place of an action in the order of its stage, and its start.

These functions are the definition of the two schedules: `actions` puts every action in its place,
and the proof for all sizes calls the same functions with symbols. Starts are in units of time in
which F, B and W take one each. They are the earliest possible ones, which is proved.

Legend: s the stage of p, k the micro-batch of M.

    GPipe   place of F(k)  k                    start of F(s, k)  s + k
            place of B(k)  M + 2 (M - 1 - k)    start of B(s, k)  M + p - 1 + 2 (M - 1 - k)
            place of W(k)  one more                               + 2 (p - 1 - s)
    1F1B    w = min(p - 1 - s, M) forwards are the warm-up
            place of F(k)  k + 2 max(k - w, 0)  start of F(s, k)  s + k in the warm-up, and k = w
            place of B(k)  min(w + 1 + k, M) + 2 k                else that of B(k - w - 1), + 2
            place of W(k)  one more             start of B(s, k)  p + 2 (p - 1 - s) + 3 k

W starts one unit after B. B of stage s - 1 starts after W of stage s, as both are one action there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from primepar.schedule.expression import Value, where

ActionFormula = Callable[[str, Value, Value, Value, Value], Value]
"""A function of the kind of an action, stage, micro-batch, stages and micro-batches of a step."""


@dataclass(frozen=True)
class ClosedForm:
    """A schedule as formulas of integers or symbols."""

    place: ActionFormula
    """Where an action is in the order of its stage."""
    start: ActionFormula
    """When it starts at the earliest."""
    finished: Callable[[Value, Value, Value, Value], Value]
    """How many W of a stage come before its F(k): a function of stage, k, stages, micro-batches."""


def least(one: Value, other: Value) -> Value:
    """The smaller of two integers or symbols."""
    return where(one < other, one, other)


def _gpipe_place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
    return k if kind == "F" else M + 2 * (M - 1 - k) + (kind == "W")


def _gpipe_start(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
    if kind == "F":
        return s + k
    return M + p - 1 + 2 * (M - 1 - k) + 2 * (p - 1 - s) + (kind == "W")


def _warm_up(s: Value, p: Value, M: Value) -> Value:
    return least(p - 1 - s, M)


def _alternating_place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
    warm_up = _warm_up(s, p, M)
    if kind == "F":
        return k + 2 * where(k > warm_up, k - warm_up, 0)
    return least(warm_up + 1 + k, M) + 2 * k + (kind == "W")


def _alternating_start(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
    back = p + 2 * (p - 1 - s)
    if kind == "F":
        later = k - (p - 1 - s) - 1
        return where(later < 0, s + k, back + 3 * later + 2)
    return back + 3 * k + (kind == "W")


def _alternating_finished(s: Value, k: Value, p: Value, M: Value) -> Value:
    warm_up = _warm_up(s, p, M)
    return where(k > warm_up, k - warm_up, 0)


CLOSED_FORMS = {
    "gpipe": ClosedForm(_gpipe_place, _gpipe_start, lambda s, k, p, M: 0),
    "1f1b": ClosedForm(_alternating_place, _alternating_start, _alternating_finished),
}
