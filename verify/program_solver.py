"""One question to Z3, with a time limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import z3


class UndecidedError(Exception):
    """Z3 gave no answer; the message is its reason."""


@dataclass(frozen=True)
class Solver:
    """Asks Z3; every question may take `timeout` seconds."""

    timeout: float

    def model(self, claims: Sequence[Any], assumptions: Sequence[Any] = ()) -> Any | None:
        """Values that make all claims true, or None where there are none.

        Raises `UndecidedError` if Z3 cannot tell within the time limit.
        """
        solver = self._solver(claims)
        answer = solver.check(*assumptions)
        if answer == z3.unknown:
            raise UndecidedError(self._reason(solver))
        return solver.model() if answer == z3.sat else None

    def core(self, claims: Sequence[Any], assumptions: Sequence[Any]) -> set[str] | None:
        """Names of assumptions that cannot all hold, or None where they can.

        Raises `UndecidedError` as `model` does.
        """
        solver = self._solver(claims)
        answer = solver.check(*assumptions)
        if answer == z3.unknown:
            raise UndecidedError(self._reason(solver))
        return {str(name) for name in solver.unsat_core()} if answer == z3.unsat else None

    def _solver(self, claims: Sequence[Any]) -> Any:
        solver = z3.SimpleSolver()
        solver.set("timeout", max(1, round(self.timeout * 1000)))
        solver.add(*claims)
        return solver

    def _reason(self, solver: Any) -> str:
        return f"Z3 gave no answer within {self.timeout:g} s ({solver.reason_unknown()})"
