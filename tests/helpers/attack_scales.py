"""Generated programs with scales, by all readers: `python tests/helpers/attack_scales.py [COUNT]`.

Proofs, explorer and certificate checker must give one verdict. The emulator must run what is
proved where `final` lists what the program asks, and nothing that is refuted.
"""

from __future__ import annotations

import sys
from collections import Counter
from multiprocessing import Pool
from time import perf_counter
from typing import NamedTuple

from agreement import disagreement, refuted
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


class Compared(NamedTuple):
    """What the readers found of one program."""

    seed: int
    verdict: str
    """Of the proofs."""
    emulated: bool
    differ: str
    """Which readers differ; nothing if they agree."""


def compared(seed: int) -> Compared:
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
    return Compared(seed, report.verdict, emulated, differ or certified(program, report))


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


def main() -> int:
    """Compare, and print the counts; 1 if two readers differ."""
    count, start = int(sys.argv[1]) if len(sys.argv) > 1 else 3000, perf_counter()
    with Pool(2) as pool:
        judged = sorted(pool.imap_unordered(compared, range(count), chunksize=20))
    counts = Counter((one.verdict, one.emulated) for one in judged)
    print(f"{count} generated programs with scales in {perf_counter() - start:.0f} s")
    for (verdict, emulated), number in sorted(counts.items()):
        print(f"  {verdict}, {'run' if emulated else 'refused'} by the emulator: {number}")
    wrong = [one for one in judged if one.differ]
    print(f"readers differ on {len(wrong)}")
    for one in wrong[:20]:
        print(f"  {one.seed}: {one.differ}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
