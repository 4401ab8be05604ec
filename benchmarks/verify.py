"""How long do proofs take here, of programs of growing size and of primitives for every side?

Each program is also given to the plain encoding in Z3, one integer for each instruction, which
decides deadlock-freedom alone, and may take `--timeout` seconds. Peak MiB is the most memory that
the process had by then. All is measured in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import isqrt
from time import perf_counter, process_time
from typing import Annotated

from benchmarks.bench import BenchRow, Case, Column, bench, peak_mib
from benchmarks.programs import BenchProgram, cannon, programs
from primepar.commands.options import MOST_DEVICES
from primepar.commands.verify import EXIT_CODES, LONGEST
from primepar.partition import PRIMITIVES
from primepar.verify import verify_primitive, verify_program


class ProgramRow(BenchRow, frozen=True):
    """One program: the verdict of all its properties, times and memory of both encodings."""

    timed = ("seconds", "plain_seconds")
    program: Annotated[str, Column("program")]
    ranks: Annotated[int, Column("ranks")]
    instructions: Annotated[int, Column("instructions", ",")]
    verdict: Annotated[str, Column("verdict")]
    seconds: Annotated[float, Column("seconds", ".3f")]
    peak_mib: Annotated[float, Column("peak MiB", ".0f")]
    """Peak memory of the process, before any plain encoding of this program."""
    plain_seconds: float | None
    """None where there was no answer in time."""
    plain_limit: float

    @property
    def plain(self) -> Annotated[str, Column("plain Z3")]:
        """The seconds of the plain encoding, or its limit."""
        seconds = self.plain_seconds
        return f"> {self.plain_limit:g} s" if seconds is None else f"{seconds:.3f} s"

    @property
    def code(self) -> int:
        return EXIT_CODES[self.verdict]


class PrimitiveRow(BenchRow, frozen=True):
    """One primitive for every side, in seconds of CPU."""

    timed = ("seconds",)
    primitive: Annotated[str, Column("primitive, every side")]
    verdict: Annotated[str, Column("verdict")]
    seconds: Annotated[float, Column("CPU s", ".3f")]

    @property
    def code(self) -> int:
        return EXIT_CODES[self.verdict]


def measure_program(case: BenchProgram, limit: float) -> ProgramRow:
    """Prove a program, and ask the plain encoding."""
    start = perf_counter()
    report = verify_program(case.program, case.name)
    seconds, peak = perf_counter() - start, peak_mib()
    ends = report["deadlock-freedom"].verdict == "proved"
    start = perf_counter()
    plainly = verify_program(case.program, only="deadlock-freedom", timeout=limit, solver="z3")
    plain = None if plainly.verdict == "unknown" else perf_counter() - start
    assert plain is None or ends == (plainly.verdict == "proved"), "two ways must agree"
    return ProgramRow(case.name, case.program.ranks, case.instructions, report.verdict, seconds,
                      peak, plain, limit)  # fmt: skip


def measure_primitive(name: str) -> PrimitiveRow:
    """Prove a registered primitive for every side."""
    start = process_time()
    verdict = verify_primitive(PRIMITIVES[name](), name).verdict
    return PrimitiveRow(name, verdict, process_time() - start)


def verify(
    ranks: tuple[int, ...] = (4, 16, 64, 256, 1024), timeout: float = 60.0
) -> Iterator[Case]:
    for size in ranks:
        if not 1 <= size <= MOST_DEVICES or isqrt(size) ** 2 != size:
            raise ValueError(
                f"--ranks: expected square numbers from 1 to {MOST_DEVICES}, got {size}: "
                "write --ranks 4,16,64"
            )
    if not 0.001 <= timeout <= LONGEST:
        raise ValueError(f"--timeout: expected seconds from 0.001 to {LONGEST}, got {timeout:g}")
    verify_program(cannon(1), solver="z3", only="deadlock-freedom")  # Z3 is loaded once
    for case in (case for size in ranks for case in programs(size)):
        name = f"{case.name}, {case.program.ranks} ranks"
        yield name, partial(measure_program, case, timeout)
    for name in PRIMITIVES:
        yield name, partial(measure_primitive, name)


if __name__ == "__main__":
    bench(verify, rounds=3)
