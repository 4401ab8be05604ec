"""Programs of training steps and linear operators for tests, each lowered once in a process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from primepar import operators
from primepar.operators import Until
from primepar.operators.single_operator import LinearPrograms
from primepar.operators.single_operator import lower_linear as lower_linear_uncached
from primepar.operators.step_options import DEFAULT, StepOptions
from primepar.passes import PASSES
from primepar.plan import Plan
from primepar.schedule import Program, Sequence

lower_uncached = operators.lower_step


class _Asked:
    """A plan as a key: its sequences are a dict, which has no hash."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.text = plan, msgspec.json.encode(plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@lru_cache(maxsize=32)
def _lowered(
    asked: _Asked,
    batch: int,
    positions: int,
    until: Until,
    options: StepOptions,
    passes: tuple[str, ...],
) -> Program:
    return lower_uncached(asked.plan, batch, positions, until, options, passes)


def lower_step(
    plan: Plan,
    batch: int,
    positions: int,
    until: Until = "update",
    options: StepOptions = DEFAULT,
    passes: Iterable[str] = tuple(PASSES),
) -> Program:
    """The program of `primepar.operators.lower_step`, kept for the tests that ask for it again."""
    return _lowered(_Asked(plan), batch, positions, until, options, tuple(passes))


_linears: dict[tuple[object, ...], LinearPrograms] = {}


def lower_linear(sequence: Sequence, *given: Any) -> LinearPrograms:
    """The programs of `primepar.operators.single_operator.lower_linear`, kept as well."""
    key = (str(sequence), *given)
    if key not in _linears:
        _linears[key] = lower_linear_uncached(sequence, *given)
    return _linears[key]
