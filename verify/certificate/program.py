"""Certificates of programs: the order or the wrong places that a proof found, written down.

`primepar.certify` checks them and shares nothing with the prover.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from primepar.certify.block_contents import ProgramNames
from primepar.certify.matching import Place
from primepar.certify.program import (
    Evidence,
    ProgramCertificate,
    certify_program,
    digest,
)
from primepar.errors import CertificateError, ClaimError
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import Program
from primepar.verify.program.matching import Matching, Operation
from primepar.verify.program.races import races
from primepar.verify.program.wait_order import Waits
from primepar.verify.report import PropertyResult, Report

_PLACE = re.compile(r"rank (\d+), (?:instruction (\d+)|final )")


def certificate(
    program: Program, report: Report, buffered: bool = False, side: str | None = None
) -> ProgramCertificate:
    """What the report of a program rests on.

    Raises `CertificateError` if something is unknown, if nothing is refuted but memory and traffic,
    which are sums that need no witness, or if the checker refuses it: it asks for finished sums of
    programs that do not say so themselves.
    """
    made = _Made(program, buffered)
    found = list(made.evidence(report))
    refuted = tuple(each for place, each in enumerate(found) if each not in found[:place])
    if report.verdict == "unknown":
        raise CertificateError("no certificate, as the verdict is unknown")
    if report.verdict == "refuted" and not refuted:
        raise CertificateError("no certificate, as memory and traffic are sums without a witness")
    given = ProgramCertificate(
        format="primepar-certificate",
        version=1,
        side=side,
        buffered=buffered,
        program=digest(program),
        levels=made.levels(),
        coverage={} if refuted else made.coverage(),
        refuted=refuted,
    )
    try:
        certify_program(given, program)
    except ClaimError as error:
        raise CertificateError(f"no certificate, as its checker asks more: {error}") from None
    return given


class _Made:
    def __init__(self, program: Program, buffered: bool) -> None:
        self.program = program
        self.flow = Matching.of(program)
        self.products = ProgramNames(program).products
        self.waits = Waits(self.flow, buffered)
        self.order = self.waits.order()

    def levels(self) -> tuple[tuple[int, ...], ...]:
        """When each waiting instruction returns: its rank's next stretch begins then."""
        levels: list[list[int]] = [[] for _ in range(self.program.ranks)]
        for before, stretch, level in zip(
            [None, *self.waits.stretches], self.waits.stretches, self.waits.level, strict=False
        ):
            if before is not None and before.rank == stretch.rank and level is not None:
                levels[stretch.rank].append(level)
        waiting = [sum(map(self._is_real, own)) for own in self.flow.operations]
        return tuple(tuple(own[:count]) for own, count in zip(levels, waiting, strict=True))

    def _is_real(self, operation: Operation) -> bool:
        """Whether it waits, and is no wait that was added for a request without one."""
        return operation.blocks and operation.index < len(self.program.programs[operation.rank])

    def coverage(self) -> dict[str, tuple[Place, ...]]:
        """Where each sub-operator of the grid is computed, in order of the grid."""
        found: dict[str, tuple[Place, ...]] = {}
        for phase, grid in (self.program.grid or {}).items():
            at = {
                tuple(cell[dim] for dim in grid): place
                for place, cell in self.products.get(phase, ())
            }
            found[phase] = tuple(at[cell] for cell in sorted(at))
        return found

    def evidence(self, report: Report) -> Iterator[Evidence]:
        """The places of every property that is refuted."""
        for result in report.properties:
            if result.verdict != "refuted":
                continue
            match result.name:
                case "deadlock-freedom":
                    yield Evidence("deadlock-freedom", tuple(sorted(self._hanging())))
                case "coverage":
                    yield self._uncovered()
                case "races":
                    race = races(self.flow, Meaning(self.program))[0]
                    yield Evidence("races", ((race.rank, race.index),), race.block)
                case "placement" | "completion" | "alignment":
                    yield Evidence("data", (self._blamed(result),))

    def _hanging(self) -> set[Place]:
        """What meets nothing; or all that hangs, each waiting for what comes after another."""
        if self.flow.faults:
            return {(self.flow.faults[0].rank, self.flow.faults[0].index)}
        last = {stretch.rank: stretch for stretch in self.order}
        ends = {stretch.rank: stretch for stretch in self.waits.stretches}
        return {
            (rank, stretch.waiting.index)
            for rank, stretch in last.items()
            if stretch is not ends[rank] and stretch.waiting and self._is_real(stretch.waiting)
        }

    def _uncovered(self) -> Evidence:
        """The first sub-operator that is not computed once, with all places that compute it."""
        for phase, grid in (self.program.grid or {}).items():
            cells = product(*map(range, grid.values()))
            found: dict[frozenset[tuple[str, int]], list[Place]] = {
                frozenset(zip(grid, cell, strict=True)): [] for cell in cells
            }
            due = set(found)
            for place, own in self.products.get(phase, ()):
                found.setdefault(frozenset(own.items()), []).append(place)
            for cell, places in found.items():
                if len(places) != (cell in due):
                    return Evidence("coverage", tuple(places), None, phase, dict(cell))
        raise AssertionError("coverage is refuted")

    def _blamed(self, result: PropertyResult) -> Place:
        """Where a sentence begins; one past the last instruction of a rank for its end.

        What ends on no rank is said of rank 0.
        """
        found = _PLACE.match(result.counterexample or "")
        rank = int(found[1]) if found else 0
        index = found[2] if found else None
        return rank, len(self.program.programs[rank]) if index is None else int(index)
