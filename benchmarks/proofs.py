"""What `python -m benchmarks verify` measures: seconds and memory, all of it in this process."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from msgspec import Struct

from benchmarks.programs import BenchProgram, cannon
from primepar.commands.progress import Tick
from primepar.partition import PRIMITIVES

REPEATS = 3
CHEAP = 1.0
"""Seconds; what takes longer is measured only once."""


class ProgramRow(Struct, frozen=True):
    """One program: the verdict of all its properties, times and memory of both encodings."""

    program: str
    ranks: int
    instructions: int
    verdict: str
    seconds: float
    """Median."""
    peak_mib: float
    """Peak memory of the process, before any plain encoding."""
    plain_seconds: float | None
    """Median; None where there was no answer in time."""


class PrimitiveRow(Struct, frozen=True):
    """One primitive for every side."""

    primitive: str
    verdict: str
    seconds: float
    """Median."""


@dataclass
class _Times:
    case: BenchProgram
    verdict: str = ""
    ends: bool = False
    peak: float = 0.0
    ours: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    def prove(self) -> None:
        from primepar.verify import verify_program

        start = perf_counter()
        report = verify_program(self.case.program, self.case.name)
        self.ours.append(perf_counter() - start)
        self.verdict, self.ends = report.verdict, report["deadlock-freedom"].verdict == "proved"

    def ask_plainly(self, limit: float) -> None:
        from primepar.verify import verify_program

        start = perf_counter()
        program, asked = self.case.program, "deadlock-freedom"
        report = verify_program(program, only=asked, timeout=limit, solver="z3")
        if report.verdict != "unknown":
            ends = report.verdict == "proved"
            assert ends == self.ends, "two ways to prove the same must agree"
            self.plain.append(perf_counter() - start)

    def row(self) -> ProgramRow:
        program = self.case.program
        plain = median(self.plain) if self.plain else None
        return ProgramRow(self.case.name, program.ranks, self.case.instructions, self.verdict,
                          median(self.ours), self.peak, plain)  # fmt: skip


def measure_programs(cases: Sequence[BenchProgram], limit: float, tick: Tick) -> list[ProgramRow]:
    """Seconds and memory for each program; the plain encoding may take `limit` seconds each time.

    Cheap ones are measured again in rounds, ours and the plain encoding alternating.
    """
    _warm_up()
    measured = [_Times(case) for case in cases]
    for times in measured:
        tick(times.case.name)
        times.prove()
        times.peak = _peak_mib()
    for times in measured:
        tick(f"{times.case.name}, plainly")
        times.ask_plainly(limit)
    for _ in range(REPEATS - 1):
        for times in measured:
            tick(f"{times.case.name}, again")
            if times.ours[0] < CHEAP:
                times.prove()
            if times.plain and times.plain[0] < CHEAP:
                times.ask_plainly(limit)
    return [times.row() for times in measured]


def measurements(programs: int) -> int:
    """How often `measure_programs` and `measure_primitives` tick."""
    return (programs + len(PRIMITIVES)) * REPEATS + programs


def measure_primitives(tick: Tick) -> list[PrimitiveRow]:
    """Seconds to prove each registered primitive for every side; median of interleaved rounds."""
    from primepar.verify import verify_primitive

    seconds: dict[str, list[float]] = {name: [] for name in PRIMITIVES}
    verdicts = {}
    for _ in range(REPEATS):
        for name, primitive in PRIMITIVES.items():
            tick(name)
            start = perf_counter()
            verdicts[name] = verify_primitive(primitive(), name).verdict
            seconds[name].append(perf_counter() - start)
    return [PrimitiveRow(name, verdicts[name], median(taken)) for name, taken in seconds.items()]


def _warm_up() -> None:
    """Load Z3, which does not count for any proof."""
    from primepar.verify import verify_program

    verify_program(cannon(1))


def _peak_mib() -> float:
    """Peak memory of this process; Linux reports it in KiB, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
