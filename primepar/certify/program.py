"""Checks the certificate of a program: an order of all that waits, or the places that are wrong.

What can be read off a program is not in a certificate: messages meet in order, sub-operators are
counted, and what blocks hold is followed once, in the order that the certificate gives.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from msgspec import Struct

from primepar.certify.flow import Flow, Place, Side
from primepar.certify.names import Cell, Names
from primepar.certify.run import Run, Stretch
from primepar.errors import ClaimError
from primepar.schedule.program import Program
from primepar.schedule.program_file import program_json

Refutable = Literal["coverage", "data", "deadlock-freedom", "races"]
"""What may be wrong; data is placement, completion and alignment together. Memory and traffic are
sums that need no witness: a certificate says nothing of them."""


class Evidence(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a property is wrong.

    Deadlock-freedom: instructions none of which ever returns, as each waits for what comes after
    another of them or for what never comes, or a message that meets none. Coverage: all that
    compute one sub-operator. Races: what touches `block`, in flight. Data: what reads a wrong
    block; one past the last instruction where a block is wrong at the end.
    """

    property: Refutable
    places: tuple[Place, ...]
    block: str | None = None
    phase: str | None = None
    sub_operator: dict[str, int] | None = None


class ProgramCertificate(Struct, frozen=True, forbid_unknown_fields=True, tag="program"):
    """What the proof or the refutation of a program rests on."""

    format: Literal["primepar-certificate"]
    version: Literal[1]
    side: str | None
    """Of a primitive the mesh that it is about, as `--side` takes it."""
    buffered: bool
    program: str
    """SHA-256 of the program's JSON text."""
    levels: tuple[tuple[int, ...], ...]
    """For each rank when its instructions that wait return, in order; as many as do return."""
    coverage: dict[str, tuple[Place, ...]]
    """Phase -> where each sub-operator is computed, in order of the grid."""
    refuted: tuple[Evidence, ...] = ()
    """Empty for a proof."""


def digest(program: Program) -> str:
    """SHA-256 of a program's JSON text."""
    return sha256(program_json(program).encode()).hexdigest()


def certified(given: ProgramCertificate, program: Program) -> tuple[str, ...]:
    """The properties that a certificate is about."""
    if given.refuted:
        return tuple(evidence.property for evidence in given.refuted)
    names = ("placement", "completion", "alignment", "deadlock-freedom", "races")
    return ("coverage", *names) if program.grid else names


def at(place: Place | Side) -> str:
    """How messages name a place."""
    return f"rank {place[0]}, instruction {place[1]}"


def certify_program(given: ProgramCertificate, program: Program) -> None:
    """Check a certificate. Raises `ClaimError` for the first claim that does not hold."""
    if given.program != digest(program):
        raise ClaimError(
            f"program: expected the certificate of this program, {digest(program)[:12]}, "
            f"got that of another, {given.program[:12]}"
        )
    if len(given.levels) != program.ranks:
        raise ClaimError(
            f"levels: expected one list for each of {program.ranks} ranks, got {len(given.levels)}"
        )
    checker = _Checker(given, program)
    checker.check_levels()
    for evidence in given.refuted:
        if not checker.is_wrong(evidence):
            places = " and ".join(map(at, evidence.places)) or "no place"
            raise ClaimError(
                f"refuted: expected {evidence.property} to be wrong at {places}, "
                "got nothing wrong there"
            )
    if not given.refuted:
        checker.check_proof()


class _Checker:
    def __init__(self, given: ProgramCertificate, program: Program) -> None:
        self.given, self.program = given, program
        self.flow, self.names = Flow(program, given.buffered), Names(program)
        self.awaited = [self.flow.awaited(rank) for rank in range(program.ranks)]
        self.stretches: list[Stretch] = []
        self.finished: set[int] = set()
        self.begins: dict[Place, int] = {}
        """Place -> level at which an instruction starts, of those that do."""
        for rank in range(program.ranks):
            self._cut(rank)

    def _cut(self, rank: int) -> None:
        """Stretches of instructions that run without waiting."""
        levels, first, level, returning = iter(self.given.levels[rank]), 0, 0, -1
        for index, waits in enumerate(self.awaited[rank]):
            self.begins[rank, index] = level
            if waits is None:
                continue
            self.stretches.append((level, rank, returning, range(first, index + 1)))
            first, returning = index + 1, index
            after = next(levels, None)
            if after is None:
                return
            if after <= level:
                raise ClaimError(
                    f"levels: expected {at((rank, index))} to return after {level}, got {after}"
                )
            level = after
        self.stretches.append((level, rank, returning, range(first, len(self.awaited[rank]))))
        self.finished.add(rank)
        if next(levels, None) is not None:
            raise ClaimError(f"levels: expected those of rank {rank} only, got more")

    def check_levels(self) -> None:
        """Whatever returns does so after all that it waits for has started."""
        for level, rank, returning, _ in self.stretches:
            wants = self.awaited[rank][returning] if returning >= 0 else None
            for want in wants or ():
                if want is None:
                    raise ClaimError(
                        f"levels: expected {at((rank, returning))} never to return, as nothing "
                        f"meets it, got {level}"
                    )
                started = self.begins.get(want[:2])
                if started is None or started >= level:
                    when = "never" if started is None else f"at {started}"
                    raise ClaimError(
                        f"levels: expected {at((rank, returning))} to return after "
                        f"{at(want)} starts, {when}, got {level}"
                    )

    def is_wrong(self, evidence: Evidence) -> bool:
        """Whether a property is wrong where the evidence says."""
        places = set(evidence.places)
        match evidence.property:
            case "deadlock-freedom":
                return bool(places) and all(self._hangs(place, places) for place in places)
            case "coverage":
                cell, phase = evidence.sub_operator or {}, evidence.phase or ""
                products = self.names.products.get(phase, ())
                found = tuple(place for place, own in products if own == cell)
                return found == evidence.places and len(found) != (cell in self._cells(phase))
            case "races":
                found_ = {(rank, index) for rank in range(self.program.ranks)
                          for index, block in self.flow.races(rank)
                          if block == evidence.block}  # fmt: skip
                return bool(places) and places <= found_
            case _:
                return bool(places) and places <= {wrong[:2] for wrong in self._wrong()}

    def _hangs(self, place: Place, places: set[Place]) -> bool:
        """Whether an instruction meets nothing, or waits for what comes after one of the others."""
        rank, index = place
        if not (0 <= rank < self.program.ranks and 0 <= index < len(self.awaited[rank])):
            return False
        return self.flow.lonely(place) or any(
            want is None or any(want[0] == other and want[1] > before for other, before in places)
            for want in self.awaited[rank][index] or ()
        )

    def check_proof(self) -> None:
        """All properties, one after the other."""
        for rank, nodes in enumerate(self.program.programs):
            for index in range(len(nodes)):
                if self.flow.lonely((rank, index)):
                    raise ClaimError(f"matching: expected a partner of {at((rank, index))}, "
                                     "got none")  # fmt: skip
            if rank not in self.finished:
                raise ClaimError(f"levels: expected rank {rank} to come to its end, got too few")
            for index, block in sorted(self.flow.races(rank)):
                raise ClaimError(f"races: expected none, got {block} at {at((rank, index))}")
        if self.given.coverage.keys() != (self.program.grid or {}).keys():
            raise ClaimError("coverage: expected the phases of the grid, got others")
        for phase, places in self.given.coverage.items():
            self._check_coverage(phase, places)
        for rank, index, block in sorted(self._wrong()):
            raise ClaimError(f"data: expected the right data, got {block} at {at((rank, index))}")

    def _cells(self, phase: str) -> list[Cell]:
        """All sub-operators of a phase of the grid."""
        found = self.names.meaning.phases.get(phase)
        return self.names.cells(found) if found is not None and found.grid is not None else []

    def _check_coverage(self, phase: str, places: tuple[Place, ...]) -> None:
        cells, products = self._cells(phase), dict(self.names.products.get(phase, ()))
        if not len(places) == len(products) == len(cells):
            raise ClaimError(
                f"coverage: expected {len(cells)} places of {phase}, got {len(places)}, and "
                f"{len(products)} in the program"
            )
        for place, cell in zip(places, cells, strict=True):
            if products.get(place) != cell:
                text = ", ".join(f"{dim}={index}" for dim, index in cell.items())
                raise ClaimError(
                    f"coverage: expected {phase} sub-operator ({text}) at {at(place)}, "
                    "got another instruction"
                )

    def _wrong(self) -> set[tuple[int, int, str]]:
        """Where data is wrong, in the order of the levels; at the end, if all ranks come there."""
        run = Run(self.flow, self.names)
        run.follow(self.stretches)
        if len(self.finished) == self.program.ranks:
            run.end()
        return run.wrong
