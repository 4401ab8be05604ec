"""Proves a method with sizes: for every size what is stated so, and one program for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from primepar.schedule.deadline import TIMEOUT
from primepar.schedule.program_method import ProgramMethod
from primepar.verify.every_size import EVERY_SIZE
from primepar.verify.program import verify_program
from primepar.verify.report import PropertyResult, Report


def verify_method(kind: type[ProgramMethod], timeout: float = TIMEOUT) -> Report:
    """Prove a method for every size, and the program of its default sizes.

    A property that has no proof for every size is that of the program, and is stated so. The
    verdict is that of both proofs together.
    """
    default, prove = kind(), EVERY_SIZE.get(kind.name)
    every = {result.name: result for result in prove(timeout)} if prove else {}
    program = verify_program(default.program(), default.text, timeout=timeout)
    results = _joined(every, program, default.text)
    sizes = default.text.partition(":")[2]
    whole = every.keys() >= {result.name for result in program.properties}
    scope = "every size" if whole else f"every size, or for {sizes} where stated"
    return Report.of(kind.name, results, scope if every else sizes)


def _joined(
    every: Mapping[str, PropertyResult], program: Report, text: str
) -> Iterator[PropertyResult]:
    """The results of both proofs, one for each property: the one for every size if both hold."""
    names = [result.name for result in program.properties]
    for result in program.properties:
        general = every.get(result.name)
        if general is None and every and result.verdict == "proved":
            note = f"of the program of {text}{': ' if result.reason else ''}{result.reason or ''}"
            yield replace(result, reason=note)
        # A lemma for every size is about formulas. If the program made of them is wrong, that
        # counts.
        elif general is None or result.verdict != "proved":
            yield result
        else:
            yield replace(general, seconds=general.seconds + result.seconds)
    yield from (result for name, result in every.items() if name not in names)
