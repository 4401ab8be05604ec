"""Proof of a primitive or a sequence on one mesh: its program is proved as it stands."""

from __future__ import annotations

from primepar.schedule.lowering import lower
from primepar.schedule.movement import Movement
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence
from primepar.verify.primitive_search import completion_faults
from primepar.verify.program_proof import verify_program
from primepar.verify.report import PropertyResult, Report


def verify_side(
    target: Primitive | Sequence,
    sides: tuple[int, ...] = (),
    name: str | None = None,
    buffered: bool = False,
    timeout: float = 30.0,
) -> Report:
    """Decide properties 1 to 6 on one mesh; `sides` are a primitive's, a sequence has its own.

    Beside what its program promises at the end, completion asks that the end is where the map
    leaves every output block. Raises `SequenceError` if a primitive has another number of sides.
    """
    sequence = target if isinstance(target, Sequence) else Sequence.of(target, *sides)
    report = verify_program(lower(sequence), name or str(sequence), buffered, timeout)
    fault = next(completion_faults(Movement(sequence)), None)
    if fault is None or report["completion"].verdict != "proved":
        return report
    left = PropertyResult("completion", "refuted", report["completion"].seconds, fault)
    properties = (left if each.name == "completion" else each for each in report.properties)
    return Report.of(report.target, properties)
