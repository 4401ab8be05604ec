"""Public cases: small programs of our own that show published bugs, each wrong and fixed."""

from __future__ import annotations

from primepar.errors import TargetError, nearest
from primepar.preflight.cases import (  # noqa: F401  (each adds its cases)
    buffers,
    orders,
    reductions,
    scales,
    wrong_blocks,
)
from primepar.preflight.cases.public_case import CASES, PublicCase
from primepar.schedule import Program

PREFIX, FIXED = "case:", ":fixed"

__all__ = ["CASES", "PREFIX", "PublicCase", "case_program"]


def case_program(target: str) -> Program:
    """The program of `case:NAME`, which is wrong, or of `case:NAME:fixed`.

    Raises `TargetError` if there is no such case.
    """
    name = target.removeprefix(PREFIX).removesuffix(FIXED)
    case = CASES.get(name)
    if case is None:
        near = nearest(name, CASES).removeprefix(": write ")
        fix = f"write {PREFIX}{near}" if near else "primepar list --cases prints them"
        raise TargetError(f"{target}: expected case:NAME of a public case, got {name!r}: {fix}")
    return case.fixed if target.endswith(FIXED) else case.wrong
