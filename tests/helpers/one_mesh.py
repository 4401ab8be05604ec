"""Proof of a primitive or a sequence on one mesh: its program is proved as given."""

from __future__ import annotations

from primepar.schedule.lowering import lower
from primepar.schedule.operators import Linear
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence
from primepar.verify.program import verify_program
from primepar.verify.report import Report


def verify_side(
    target: Primitive | Sequence,
    sides: tuple[int, ...] = (),
    name: str | None = None,
    buffered: bool = False,
    timeout: float = 30.0,
) -> Report:
    """Decide all properties on one mesh, with two elements to a slice.

    `sides` are those of a primitive; a sequence has its own.
    Raises `SequenceError` if a primitive has another number of sides.
    """
    sequence = target if isinstance(target, Sequence) else Sequence.of(target, *sides)
    program = lower(sequence, Linear.smallest(sequence.grid))
    return verify_program(program, name or str(sequence), buffered, timeout)
