"""Renames the blocks of instructions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec.structs import replace

from primepar.schedule.program import Instruction

_ONE, _SEVERAL = ("block", "accumulates"), ("blocks", "into", "reads", "also")


@cache
def _fields(kind: type[Instruction]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of an instruction class that hold one block, and those with several."""
    one, several = (
        tuple(name for name in names if name in kind.__struct_fields__)
        for names in (_ONE, _SEVERAL)
    )
    return one, several


def blocks_renamed(node: Instruction, block: Callable[[str], str]) -> dict[str, Any]:
    """Return the fields of an instruction that name blocks, with their new values."""
    one, several = _fields(type(node))
    changes: dict[str, Any] = {field: block(getattr(node, field)) for field in one}
    for field in several:
        changes[field] = tuple(map(block, getattr(node, field)))
    return changes


def renamed(node: Instruction, block: Callable[[str], str], label: str) -> Instruction:
    """Return the instruction with renamed blocks, and the label before its request and phase."""
    changes = blocks_renamed(node, block)
    posted, phase = getattr(node, "request", None), getattr(node, "phase", None)
    if posted is not None:
        changes["request"] = f"{label} {posted}"
    if phase is not None:
        changes["phase"] = f"{label}.{phase}"
    return replace(node, **changes)
