"""Checks the certificate of a program: the judge again, along the order that a search has found.

What follows from the program is not in a certificate: messages match in order, sub-operators are
counted, and the contents of blocks are followed once, along the levels that the certificate gives.
So it holds exactly if the judge comes to the same answer without any search.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, NoReturn

from msgspec import Struct

from primepar.certify.judge import Judge
from primepar.errors import ClaimError
from primepar.schedule.program import Program
from primepar.schedule.program_file import program_json
from primepar.schedule.transport import Transport


class ProgramCertificate(Struct, frozen=True, forbid_unknown_fields=True, tag="program"):
    """The order along which a program is judged, and what the judge finds."""

    format: Literal["primepar-certificate"]
    version: Literal[2]
    side: str | None
    """If a primitive was lowered: its mesh, as `--side` takes it."""
    transport: Transport
    program: str
    """SHA-256 of the program's JSON text."""
    levels: tuple[int, ...]
    """The level of every node of the wait graph, -1 for those that are never reached."""
    proved: tuple[str, ...]
    """Every property that the program asks; empty for a refutation."""
    refuted: tuple[str, ...] = ()


def digest(program: Program) -> str:
    """SHA-256 of a program's JSON text."""
    return sha256(program_json(program).encode()).hexdigest()


def certify_program(given: ProgramCertificate, program: Program) -> None:
    """Check a certificate. Raises `ClaimError` for the first claim that does not hold."""
    expected = digest(program)
    if given.program != expected:
        wanted = f"the certificate of this program, {expected[:12]}"
        _refuse("program", wanted, f"that of another, {given.program[:12]}")
    judge = Judge(program, given.transport)
    # First the order, then what follows along it: `refuted` may only be asked of checked levels.
    judge.check_levels(given.levels)
    if bool(given.proved) == bool(given.refuted):
        _refuse("properties", "proved or refuted ones", "both" if given.proved else "none")
    wrong, undecided = judge.refuted(given.levels)
    for name in given.refuted:
        if name not in wrong:
            _refuse("refuted", f"{name} to be wrong", "nothing wrong there")
    if given.proved and wrong:
        _refuse("proved", "nothing wrong", f"{sorted(wrong)[0]} refuted")
    if given.proved and undecided:
        _refuse("proved", "sizes of all blocks", f"{sorted(undecided)[0]} undecided without them")
    # All that the program asks, so that nobody drops a refuted property from a proof.
    if given.proved and given.proved != tuple(judge.asked()):
        _refuse("proved", ", ".join(judge.asked()), ", ".join(given.proved))


def _refuse(claim: str, expected: str, got: str) -> NoReturn:
    raise ClaimError(f"{claim}: expected {expected}, got {got}")
