"""The attack `scales`: generated programs with scales, by all readers.

Proofs, explorer and certificate checker must give one verdict. The emulator must run what is
proved where `final` lists what the program asks, and nothing that is refuted.
"""

from __future__ import annotations

from agreement import disagreement, refuted
from long_runs import TaskResult
from oracle.explore import explore
from scaled_programs import scaled_program

from primepar.errors import CertificateError, PrimeParError
from primepar.reference.check import check_program
from primepar.schedule import Program
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program
from primepar.verify.report import Report

COUNTED = {"memory", "traffic"}
"""What a program states of itself: the emulator does not check it, and it needs no certificate."""


def tasks(count: int) -> range:
    """The seeds of the programs."""
    return range(count)


def decide(seed: int) -> TaskResult:
    """Have all readers decide one program."""
    program = scaled_program(seed)
    report = verify_program(program)
    emulated = emulates(program)
    differ = disagreement(report, explore(program))
    wrong = refuted(report) - COUNTED
    if not differ and emulated and wrong and program.final is not None:
        differ = "emulator runs it"
    if not differ and not (emulated or wrong) and seed % 3 == 0 and program.final is not None:
        differ = "emulator refuses it"
    differ = differ or certified(program, report)
    column = f"{'run' if emulated else 'refused'} by the emulator"
    return TaskResult({"with scales": report.verdict}, {column: 1}, bool(differ), differ)


def certified(program: Program, report: Report) -> str:
    """The certificate checker's objection."""
    if report.verdict != "proved" and not refuted(report) - COUNTED:
        return ""
    try:
        certificate(program, report)
    except CertificateError as error:
        return f"checker: {error}"
    return ""


def emulates(program: Program) -> bool:
    """Whether the emulator runs a program, and its numbers are those of one device."""
    try:
        return check_program(program).equal
    except PrimeParError:
        return False
