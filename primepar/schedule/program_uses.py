"""Parts of the effects of instructions, for readers that have not moved to `effects` yet."""

from __future__ import annotations

from primepar.schedule.effects import effects, host_blocks, initial_blocks
from primepar.schedule.ledger import peak
from primepar.schedule.program import Collective, Instruction

__all__ = ["frees", "gets", "gives", "host_blocks", "initial_blocks", "peak", "uses", "writes"]


def gives(collective: Collective, rank: int) -> tuple[str, ...]:
    """Names of the blocks that a member sends."""
    return effects(collective, rank).reads


def gets(collective: Collective, rank: int) -> tuple[str, ...]:
    """Names of the blocks that a member ends with."""
    return effects(collective, rank).writes


def uses(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that must be there for an instruction; a sum that starts at zero need not."""
    return effects(instruction, rank).reads


def writes(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that an instruction makes or replaces."""
    return effects(instruction, rank).writes


def frees(instruction: Instruction) -> tuple[str, ...]:
    """Blocks that are not on the device after an instruction."""
    return effects(instruction, 0).frees
