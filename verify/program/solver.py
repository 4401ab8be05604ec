"""Questions to Z3, which keep to the deadline of the proof.

Long ones are SMT-LIB text, which Z3 reads by itself: a Python object for each of some ten thousand
terms takes longer than the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import z3

from primepar.verify.deadline import UnansweredError, seconds_left
from primepar.verify.z3_answer import check_by


class Solver:
    """Asks Z3; a question may take what is left until the deadline."""

    def has_model(self, text: str) -> bool:
        """Whether the declarations and assertions of an SMT-LIB text can all be true.

        Raises `UnansweredError` if Z3 cannot tell within the time limit.
        """
        return bool(self._check(self._solver(text)) == z3.sat)

    def smallest(self, name: str, limit: int, text: str) -> int | None:
        """Smallest integer `name` from 0 below `limit` that makes a text true, None if none does.

        The text declares it. Raises `UnansweredError` as `has_model` does.
        """
        solver, number = self._solver(text), z3.Int(name)
        low, high = 0, limit
        solver.add(number >= low, number < high)
        if self._check(solver) == z3.unsat:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            solver.push()
            solver.add(number < middle)
            if self._check(solver) == z3.sat:
                high = middle
            else:
                low = middle
            solver.pop()
        return low

    def core(self, claims: Sequence[Any], assumptions: Sequence[Any]) -> set[str] | None:
        """Names of assumptions that cannot all hold, or None where they can.

        Raises `UnansweredError` as `has_model` does.
        """
        solver = self._solver("")
        solver.add(*claims)
        unsatisfied = self._check(solver, *assumptions) == z3.unsat
        return {str(name) for name in solver.unsat_core()} if unsatisfied else None

    def _solver(self, text: str) -> Any:
        solver = z3.SimpleSolver()
        solver.from_string(text)
        return solver

    def _check(self, solver: Any, *assumptions: Any) -> Any:
        found = check_by(solver, perf_counter() + seconds_left(), *assumptions)
        if found == z3.unknown:
            raise UnansweredError(f"Z3 gave no answer in its time ({solver.reason_unknown()})")
        return found
