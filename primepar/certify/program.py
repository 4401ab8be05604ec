"""Checks the certificate of a program: an order of all that waits, or the places that are wrong.

What can be read off a program is not in a certificate: messages meet in order, sub-operators are
counted, and what blocks hold is followed once, in the order that the certificate gives.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, NoReturn

from msgspec import Struct

from primepar.certify.block_contents import ProgramNames
from primepar.certify.matching import Matches, Place, Side
from primepar.certify.replay import Run
from primepar.errors import ClaimError
from primepar.schedule.program import Program
from primepar.schedule.program_file import program_json


class Evidence(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a property is wrong.

    Deadlock-freedom: instructions none of which ever returns, as each waits for what comes after
    another of them or for what never comes, or a message that meets none. Coverage: all that
    compute one sub-operator. Races: what races with `block`. Data, which is placement, completion
    and alignment: what reads a wrong block; one past the last instruction where a block is wrong
    at the end. Memory and traffic are sums that need no witness.
    """

    property: Literal["coverage", "data", "deadlock-freedom", "races"]
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
    coverage = ("coverage",) if program.grid else ()
    proved = (*coverage, "placement", "completion", "alignment", "deadlock-freedom", "races")
    return tuple(evidence.property for evidence in given.refuted) or proved


def certify_program(given: ProgramCertificate, program: Program) -> None:
    """Check a certificate. Raises `ClaimError` for the first claim that does not hold."""
    own, ranks = digest(program), program.ranks
    if given.program != own:
        expected = f"the certificate of this program, {own[:12]}"
        _refuse("program", expected, f"that of another, {given.program[:12]}")
    if len(given.levels) != ranks:
        _refuse("levels", f"one list for each of {ranks} ranks", f"{len(given.levels)}")
    checker = _Checker(given, program)
    checker.check_levels()
    for evidence in given.refuted:
        if not checker.is_wrong(evidence):
            places = " and ".join(map(_at, evidence.places)) or "no place"
            expected = f"{evidence.property} to be wrong at {places}"
            _refuse("refuted", expected, "nothing wrong there")
    if not given.refuted:
        checker.check_proof()


def _refuse(claim: str, expected: str, got: str) -> NoReturn:
    raise ClaimError(f"{claim}: expected {expected}, got {got}")


def _at(place: Place | Side) -> str:
    return f"rank {place[0]}, instruction {place[1]}"


class _Checker:
    def __init__(self, given: ProgramCertificate, program: Program) -> None:
        self.given, self.program, self.names = given, program, ProgramNames(program)
        self.flow = Matches(program, self.names, given.buffered)
        self.unfinished: list[int] = []
        self.starts: dict[Place, int] = {}
        self.returns: dict[Place, int] = {}
        """Levels of what starts, and of what waits and returns: the next one starts there."""
        for rank, nodes in enumerate(program.programs):
            levels, level = list(reversed(given.levels[rank])), 0
            for index in range(len(nodes)):
                self.starts[rank, index] = level
                if (rank, index) in self.flow.wants and not levels:
                    self.unfinished.append(rank)
                    break
                if (rank, index) in self.flow.wants:
                    level = self.returns[rank, index] = levels.pop()
            if levels:
                _refuse("levels", f"those of rank {rank} only", "more")

    def check_levels(self) -> None:
        """Whatever returns does so after it and all that it waits for have started."""
        for place, level in self.returns.items():
            for want in (place, *self.flow.wants[place]):
                if want is None or self.starts.get(want[:2], level) >= level:
                    when = "never, as nothing meets it" if want is None else f"after {_at(want)}"
                    _refuse("levels", f"{_at(place)} to return {when}", f"{level}")

    def is_wrong(self, evidence: Evidence) -> bool:
        """Whether a property is wrong at the places of the evidence."""
        places, names = set(evidence.places), self.names
        if evidence.property == "coverage":
            phase, cell = evidence.phase or "", evidence.sub_operator
            found = tuple(place for place, own in names.products.get(phase, ()) if own == cell)
            due = cell in names.grid.get(phase, ())
            return phase in names.grid and found == evidence.places and len(found) != due
        if evidence.property == "deadlock-freedom":
            return bool(places) and all(self._hangs(place, places) for place in places)
        races = self.flow.races()
        wrong = races if evidence.property == "races" else self._wrong() - races
        named = {tuple(place) for *place, block in wrong if evidence.block in (None, block)}
        return bool(places) and places <= named

    def _hangs(self, place: Place, places: set[Place]) -> bool:
        """Whether an instruction meets nothing, or waits for what comes after one of the others."""
        return place in self.flow.lonely or any(
            want is None or any(want[0] == rank and want[1] > index for rank, index in places)
            for want in self.flow.wants.get(place, ())
        )

    def check_proof(self) -> None:
        """All properties, one after the other."""
        for place in sorted(self.flow.lonely):
            _refuse("matching", f"a partner of {_at(place)}", "none")
        for rank in self.unfinished:
            _refuse("levels", f"rank {rank} to come to its end", "too few")
        for rank, index, block in sorted(self.flow.races()):
            _refuse("races", "none", f"{block} at {_at((rank, index))}")
        if self.given.coverage.keys() != self.names.grid.keys():
            _refuse("coverage", "the phases of the grid", "others")
        for phase, grid in self.names.grid.items():
            products = dict(self.names.products.get(phase, ()))
            computed = [products.get(place) for place in self.given.coverage[phase]]
            if computed != grid or len(products) != len(grid):
                expected = f"the {len(grid)} places of {phase} in order of the grid"
                _refuse("coverage", expected, f"others, of {len(products)} in the program")
        for rank, index, block in sorted(self._wrong()):
            _refuse("data", "the right data", f"{block} at {_at((rank, index))}")

    def _wrong(self) -> set[tuple[int, int, str]]:
        """Where data is wrong, in the order of the levels; at the end, if all ranks come there."""
        run = Run(self.flow, self.names)
        events = [(level, place, run.start) for place, level in self.starts.items()]
        events += [(level, place, run.finish) for place, level in self.returns.items()]
        for _, place, step in sorted(events, key=lambda event: event[:2]):
            step(place if step == run.start else self.flow.posted.get(place, place))
        if not self.unfinished:
            run.end()
        return run.wrong
