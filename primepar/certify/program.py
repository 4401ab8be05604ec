"""Checks the certificate of a program: an order of the blocking instructions, or wrong places.

What follows from the program is not in a certificate: messages match in order, sub-operators are
counted, and the contents of blocks are computed once, in the order that the certificate gives.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, NoReturn

from msgspec import Struct

from primepar.certify.block_contents import ProgramNames
from primepar.certify.matching import Matches, Place, Side
from primepar.certify.replay import Run
from primepar.errors import ClaimError
from primepar.schedule.executable import not_executable
from primepar.schedule.program import Program
from primepar.schedule.program_file import program_json


class Evidence(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a property is wrong.

    Deadlock-freedom: instructions of which none ever returns. Each is unmatched, waits for a side
    that never starts, or waits for one that comes after another of them. Coverage: all instructions
    that compute one sub-operator. Races: the instructions that race with `block`. Data, which is
    placement, completion and alignment: the instructions that read a wrong block; one past the last
    instruction where a block is wrong at the end. Memory and traffic are sums and need no evidence.
    """

    property: Literal["coverage", "data", "deadlock-freedom", "races"]
    places: tuple[Place, ...]
    block: str | None = None
    phase: str | None = None
    sub_operator: dict[str, int] | None = None


class ProgramCertificate(Struct, frozen=True, forbid_unknown_fields=True, tag="program"):
    """Everything that the proof or the refutation of a program needs."""

    format: Literal["primepar-certificate"]
    version: Literal[1]
    side: str | None
    """If a primitive was lowered: its mesh, as `--side` takes it."""
    buffered: bool
    program: str
    """SHA-256 of the program's JSON text."""
    levels: tuple[tuple[int, ...], ...]
    """For each rank the levels at which its blocking instructions return, in order.

    Those that never return are left out."""
    coverage: dict[str, tuple[Place, ...]]
    """Phase -> (rank, instruction) of each sub-operator, in order of the grid."""
    refuted: tuple[Evidence, ...] = ()
    """Empty for a proof."""


def digest(program: Program) -> str:
    """SHA-256 of a program's JSON text."""
    return sha256(program_json(program).encode()).hexdigest()


def certified(given: ProgramCertificate, program: Program) -> tuple[str, ...]:
    """The properties that a certificate proves or refutes."""
    coverage = ("coverage",) if program.grid else ()
    proved = (*coverage, "placement", "completion", "alignment", "deadlock-freedom", "races")
    return tuple(evidence.property for evidence in given.refuted) or proved


def certify_program(given: ProgramCertificate, program: Program) -> None:
    """Check a certificate. Raises `ClaimError` for the first claim that does not hold."""
    expected_digest, ranks = digest(program), program.ranks
    if given.program != expected_digest:
        expected = f"the certificate of this program, {expected_digest[:12]}"
        _refuse("program", expected, f"that of another, {given.program[:12]}")
    wrong = not_executable(program)
    if wrong is not None:
        _refuse("program", "one that certificates know", wrong)
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
        self.matches = Matches(program, self.names, given.buffered)
        self.unfinished: list[int] = []
        self.starts: dict[Place, int] = {}
        self.returns: dict[Place, int] = {}
        """The level at which each instruction starts, and at which each blocking one returns.

        What follows on that rank starts at the level of the return."""
        for rank, nodes in enumerate(program.programs):
            levels, level = list(reversed(given.levels[rank])), 0
            for index in range(len(nodes)):
                self.starts[rank, index] = level
                if (rank, index) in self.matches.awaited and not levels:
                    self.unfinished.append(rank)
                    break
                if (rank, index) in self.matches.awaited:
                    level = self.returns[rank, index] = levels.pop()
            if levels:
                _refuse("levels", f"those of rank {rank} only", "more")

    def check_levels(self) -> None:
        """Each instruction returns after it and everything that it waits for have started."""
        for place, level in self.returns.items():
            for side in (place, *self.matches.awaited[place]):
                if side is None or self.starts.get(side[:2], level) >= level:
                    when = "never, as nothing matches it" if side is None else f"after {_at(side)}"
                    _refuse("levels", f"{_at(place)} to return {when}", f"{level}")

    def is_wrong(self, evidence: Evidence) -> bool:
        """Whether a property is wrong at the places of the evidence."""
        places, names = set(evidence.places), self.names
        if evidence.property == "coverage":
            phase, cell = evidence.phase or "", evidence.sub_operator
            products = names.products.get(phase, ())
            computing = tuple(place for place, computed in products if computed == cell)
            required = cell in names.grid.get(phase, ())
            return (
                phase in names.grid and computing == evidence.places and len(computing) != required
            )
        if evidence.property == "deadlock-freedom":
            return bool(places) and all(self._hangs(place, places) for place in places)
        races = self.matches.races()
        wrong = races if evidence.property == "races" else self._wrong() - races
        named = {tuple(place) for *place, block in wrong if evidence.block in (None, block)}
        return bool(places) and places <= named

    def _hangs(self, place: Place, places: set[Place]) -> bool:
        """Whether it is unmatched, or waits for what follows one of the places or never starts."""
        return place in self.matches.unmatched or any(
            side is None or any(side[0] == rank and side[1] > index for rank, index in places)
            for side in self.matches.awaited.get(place, ())
        )

    def check_proof(self) -> None:
        """Check every property. Raises `ClaimError` for the first that does not hold."""
        for place in sorted(self.matches.unmatched):
            _refuse("matching", f"a partner of {_at(place)}", "none")
        for rank in self.unfinished:
            _refuse("levels", f"rank {rank} to finish", "too few")
        for rank, index, block in sorted(self.matches.races()):
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
        """Where data is wrong in a run by levels; at the end only if all ranks finish."""
        run = Run(self.matches, self.names)
        events = [(level, place, run.start) for place, level in self.starts.items()]
        events += [(level, place, run.finish) for place, level in self.returns.items()]
        for _, place, step in sorted(events, key=lambda event: event[:2]):
            step(place if step == run.start else self.matches.posted.get(place, place))
        if not self.unfinished:
            run.end()
        return run.wrong
