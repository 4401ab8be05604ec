"""Builds Z3 terms several times as fast as z3's operators do; a proof builds thousands of them.

The names are z3's. Numbers and variables are cached; conjunctions leave out what is always true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import z3
from z3 import z3core

Term = Any
"""A Z3 expression; z3 ships no types."""
_CONTEXT = z3.main_ctx()
_REF = _CONTEXT.ref()
TRUE, FALSE = z3.BoolVal(True), z3.BoolVal(False)

_variable: Callable[[str], Term] = lru_cache(maxsize=4096)(z3.Int)
_number: Callable[[int], Term] = lru_cache(maxsize=256)(z3.IntVal)


def Int(name: str) -> Term:
    """An integer of that name."""
    return _variable(name)


def IntVal(number: int) -> Term:
    """A plain number."""
    return _number(number)


def And(*parts: Term) -> Term:
    """The conjunction of conditions."""
    return _joined(z3core.Z3_mk_and, parts, TRUE, FALSE)


def Or(*parts: Term) -> Term:
    """The disjunction of conditions."""
    return _joined(z3core.Z3_mk_or, parts, FALSE, TRUE)


def _joined(make: Any, parts: Sequence[Term], neutral: Term, decides: Term) -> Term:
    left = []
    for part in parts:
        term = part if not isinstance(part, bool) else TRUE if part else FALSE
        # Z3 has one address for each term, so FALSE is known by it: And(x, FALSE) is FALSE.
        if term.ast.value == decides.ast.value:
            return decides
        if term.ast.value != neutral.ast.value:
            left.append(term)
    if len(left) < 2:
        return left[0] if left else neutral
    return z3.BoolRef(make(_REF, len(left), _array(left)), _CONTEXT)


def Not(part: Term) -> Term:
    """The negation of a condition."""
    return z3.BoolRef(z3core.Z3_mk_not(_REF, part.ast), _CONTEXT)


def If(condition: Term, then: Term, otherwise: Term) -> Term:
    """`then` if the condition holds, else `otherwise`."""
    made = z3core.Z3_mk_ite(_REF, condition.ast, then.ast, otherwise.ast)
    return z3.ArithRef(made, _CONTEXT)


def Sum(parts: Sequence[Term]) -> Term:
    """The sum of integers."""
    if len(parts) < 2:
        return parts[0] if parts else IntVal(0)
    return z3.ArithRef(z3core.Z3_mk_add(_REF, len(parts), _array(parts)), _CONTEXT)


def equal(left: Term, right: Term) -> Term:
    """Equality of two terms; true without asking if they are one term."""
    if left.ast.value == right.ast.value:
        return TRUE
    return z3.BoolRef(z3core.Z3_mk_eq(_REF, left.ast, right.ast), _CONTEXT)


def _array(parts: Sequence[Term]) -> Any:
    return (z3.Ast * len(parts))(*(part.ast for part in parts))
