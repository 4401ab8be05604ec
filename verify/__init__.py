"""Z3: proofs of primitives for every side, proofs of programs, and counterexamples.

Called, `primepar.verify(target)` proves a target: see `primepar.api.verify`. The names load Z3 when
they are first used, so that the explorer works without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from primepar.verify.nesting.proof import verify_nesting
    from primepar.verify.primitive.proof import verify_primitive
    from primepar.verify.program import verify_program
    from primepar.verify.report import PropertyResult, Report

_MODULES = {
    "PropertyResult": "report",
    "Report": "report",
    "verify_nesting": "nesting.proof",
    "verify_primitive": "primitive.proof",
    "verify_program": "program",
}

__all__ = [
    "PropertyResult",
    "Report",
    "verify_nesting",
    "verify_primitive",
    "verify_program",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
