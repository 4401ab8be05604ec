"""Writes certificates of programs: the order, or the wrong places, that a proof found.

`primepar.certify` checks them and shares no code with the prover.
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

_PLACE = re.compile(r"rank (\d+), (?:instruction (\d+)|(?:host_)?final )")


def certificate(
    program: Program, report: Report, buffered: bool = False, side: str | None = None
) -> ProgramCertificate:
    """The certificate of a program's report.

    Raises `CertificateError` if a property is unknown, or if only memory or traffic is refuted,
    which are sums that need no evidence. It is also raised if the checker refuses the certificate:
    of a program with a grid the checker requires finished sums even where the program does not.
    """
    writer = _CertificateWriter(program, buffered)
    evidence = list(writer.evidence(report))
    refuted = tuple(item for place, item in enumerate(evidence) if item not in evidence[:place])
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
        levels=writer.levels(),
        coverage={} if refuted else writer.coverage(),
        refuted=refuted,
    )
    try:
        certify_program(given, program)
    except ClaimError as error:
        raise CertificateError(f"no certificate, as its checker asks more: {error}") from None
    return given


class _CertificateWriter:
    def __init__(self, program: Program, buffered: bool) -> None:
        self.program = program
        self.flow = Matching.of(program)
        self.products = ProgramNames(program).products
        self.waits = Waits(self.flow, buffered)
        self.order = self.waits.order()

    def levels(self) -> tuple[tuple[int, ...], ...]:
        """For each rank the levels at which waiting instructions return."""
        levels: list[list[int]] = [[] for _ in range(self.program.ranks)]
        for before, stretch, level in zip(
            [None, *self.waits.stretches], self.waits.stretches, self.waits.level, strict=False
        ):
            if before is not None and before.rank == stretch.rank and level is not None:
                levels[stretch.rank].append(level)
        waiting = [sum(map(self._is_real, operations)) for operations in self.flow.operations]
        return tuple(tuple(returns[:count]) for returns, count in zip(levels, waiting, strict=True))

    def _is_real(self, operation: Operation) -> bool:
        """Whether it waits and is in the program: no wait that was added for a leaked request."""
        return operation.blocks and operation.index < len(self.program.programs[operation.rank])

    def coverage(self) -> dict[str, tuple[Place, ...]]:
        """The place of each sub-operator of the grid, in order of the grid."""
        by_phase: dict[str, tuple[Place, ...]] = {}
        for phase, grid in (self.program.grid or {}).items():
            place_of = {
                tuple(cell[dim] for dim in grid): place
                for place, cell in self.products.get(phase, ())
            }
            by_phase[phase] = tuple(place_of[cell] for cell in sorted(place_of))
        return by_phase

    def evidence(self, report: Report) -> Iterator[Evidence]:
        """Yield the places of every property that is refuted."""
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
                    yield Evidence("data", (self._place_in(result),))

    def _hanging(self) -> set[Place]:
        """An unmatched instruction; or all that hang, each waiting for what follows another."""
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
        """The first sub-operator that is not computed exactly once, with all of its places."""
        for phase, grid in (self.program.grid or {}).items():
            cells = product(*map(range, grid.values()))
            computed: dict[frozenset[tuple[str, int]], list[Place]] = {
                frozenset(zip(grid, cell, strict=True)): [] for cell in cells
            }
            required = set(computed)
            for place, sub_operator in self.products.get(phase, ()):
                computed.setdefault(frozenset(sub_operator.items()), []).append(place)
            for cell, places in computed.items():
                if len(places) != (cell in required):
                    return Evidence("coverage", tuple(places), None, phase, dict(cell))
        raise AssertionError("coverage is refuted")

    def _place_in(self, result: PropertyResult) -> Place:
        """The place at which a sentence begins; one past the last instruction for a rank's end.

        A block that ends on no rank counts for rank 0.
        """
        match = _PLACE.match(result.counterexample or "")
        rank = int(match[1]) if match else 0
        index = match[2] if match else None
        return rank, len(self.program.programs[rank]) if index is None else int(index)
