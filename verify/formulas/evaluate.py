"""Z3 terms on arrays: the term that a claim is about is looked at on small meshes as it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import z3
from z3 import z3core

from primepar.verify.primitive.symbol import Term

Array = npt.NDArray[Any]
_REF = z3.main_ctx().ref()
_FOLDED = {
    z3.Z3_OP_AND: np.logical_and, z3.Z3_OP_OR: np.logical_or,
    z3.Z3_OP_EQ: np.equal, z3.Z3_OP_DISTINCT: np.not_equal,
    z3.Z3_OP_LE: np.less_equal, z3.Z3_OP_LT: np.less,
    z3.Z3_OP_GE: np.greater_equal, z3.Z3_OP_GT: np.greater,
    z3.Z3_OP_ADD: np.add, z3.Z3_OP_SUB: np.subtract, z3.Z3_OP_MUL: np.multiply,
    z3.Z3_OP_IDIV: np.floor_divide, z3.Z3_OP_MOD: np.mod,
}  # fmt: skip
"""Operations of two parts or more; divisors are positive, where Z3 rounds as NumPy does."""
_OTHER: dict[int, Callable[..., Any]] = {
    z3.Z3_OP_TRUE: lambda: np.True_, z3.Z3_OP_FALSE: lambda: np.False_,
    z3.Z3_OP_NOT: np.logical_not, z3.Z3_OP_ITE: np.where, z3.Z3_OP_UMINUS: np.negative,
}  # fmt: skip


def evaluate(term: Term, numbers: Mapping[str, Array]) -> Array:
    """The value of a term at all points at once, given those of its variables by name."""
    known: dict[int, Any] = {}

    def value(ast: Any) -> Any:
        own = z3core.Z3_get_ast_id(_REF, ast)
        if own not in known:
            known[own] = made(ast)
        return known[own]

    def made(ast: Any) -> Any:
        if z3core.Z3_get_ast_kind(_REF, ast) == z3.Z3_NUMERAL_AST:
            return int(z3core.Z3_get_numeral_string(_REF, ast))
        name = z3core.Z3_get_app_decl(_REF, ast)
        kind = z3core.Z3_get_decl_kind(_REF, name)
        if kind == z3.Z3_OP_UNINTERPRETED:
            return numbers[z3core.Z3_get_symbol_string(_REF, z3core.Z3_get_decl_name(_REF, name))]
        count = z3core.Z3_get_app_num_args(_REF, ast)
        parts = [value(z3core.Z3_get_app_arg(_REF, ast, place)) for place in range(count)]
        return reduce(_FOLDED[kind], parts) if kind in _FOLDED else _OTHER[kind](*parts)

    return np.asarray(value(term.ast))
