"""Certificates of programs, altered in many ways: none may be taken for what is not true.

`python tests/certificate_attack.py 2000` alters as many and prints what became of them. The test
run has a small sample.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from certificate_cases import FILES, NO_WITNESS, altered, lowered, numbers, proved
from certificate_cases import program as program_of
from msgspec import json
from msgspec.structs import replace
from mutants import mutant

from primepar.certify.program import Evidence, ProgramCertificate, certify_program, digest
from primepar.errors import CertificateError, ClaimError
from primepar.partition import PRIMITIVES
from primepar.schedule import Program
from primepar.schedule.program import Compute
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program
from primepar.verify.program.matching import Matching
from primepar.verify.program.wait_order import Waits
from primepar.verify.report import Report

KINDS = {"placement": "data", "completion": "data", "alignment": "data"}
Levels = list[list[int]]
Way = Callable[["Case", Random], ProgramCertificate | None]


class Case(NamedTuple):
    """A program with the prover's report, and its certificate."""

    program: Program
    report: Report
    given: ProgramCertificate

    @property
    def refuted(self) -> set[str]:
        """What the prover refutes, in the words of certificates."""
        names = {result.name for result in self.report.properties if result.verdict == "refuted"}
        return {KINDS.get(name, name) for name in names}


def cases(random: Random) -> Iterator[Case]:
    """Registered primitives, program files and mutants, in turn."""
    names = [*PRIMITIVES, *(str(path) for path in FILES if path not in NO_WITNESS)]
    while True:
        name, buffered = random.choice(names), random.random() < 0.2
        buffered = buffered and "/" in name
        yield Case(program_of(name), *proved(name, buffered))
        whole = mutant(random.randrange(10_000))
        report = verify_program(whole)
        try:
            yield Case(whole, report, certificate(whole, report))
        except CertificateError:
            continue


# Ways to alter a certificate; None where there is nothing to alter.


def number(case: Case, random: Random) -> ProgramCertificate | None:
    """Another whole number somewhere."""
    if not list(numbers(json.decode(json.encode(case.given)))):
        return None
    _, changed = altered(case.given, random)
    assert isinstance(changed, ProgramCertificate)
    return changed


def buffering(case: Case, random: Random) -> ProgramCertificate | None:
    """Sends that are buffered, or no longer."""
    return replace(case.given, buffered=not case.given.buffered)


def other_digest(case: Case, random: Random) -> ProgramCertificate | None:
    """The digest with two digits exchanged."""
    text = case.given.program
    return replace(case.given, program=text[1] + text[0] + text[2:])


def of_levels(change: Callable[[Levels, Random], None]) -> Way:
    """A way that changes the lists of levels."""

    def way(case: Case, random: Random) -> ProgramCertificate | None:
        levels = [list(rank_levels) for rank_levels in case.given.levels]
        if not any(levels):
            return None
        change(levels, random)
        return replace(case.given, levels=tuple(map(tuple, levels)))

    return way


def permuted(levels: Levels, random: Random) -> None:
    """The levels of one rank in another order."""
    random.shuffle(random.choice([rank_levels for rank_levels in levels if rank_levels]))


def exchanged(levels: Levels, random: Random) -> None:
    """The lists of the ranks in another order."""
    random.shuffle(levels)


def shortened(levels: Levels, random: Random) -> None:
    """Without the last level of a rank."""
    random.choice([rank_levels for rank_levels in levels if rank_levels]).pop()


def lengthened(levels: Levels, random: Random) -> None:
    """With one level more."""
    rank_levels = random.choice(levels)
    rank_levels.append(max(rank_levels, default=0) + random.choice((-1, 0, 1, 5)))


def flattened(levels: Levels, random: Random) -> None:
    """Every rank as early as its own instructions allow."""
    levels[:] = [list(range(1, len(rank_levels) + 1)) for rank_levels in levels]


def shifted(levels: Levels, random: Random) -> None:
    """All later levels of one rank, earlier or later."""
    rank_levels = random.choice([rank_levels for rank_levels in levels if rank_levels])
    first, by = random.randrange(len(rank_levels)), random.choice((-3, -2, -1, 1, 2, 3))
    rank_levels[first:] = [level + by for level in rank_levels[first:]]


def coverage(case: Case, random: Random) -> ProgramCertificate | None:
    """Places of the coverage exchanged, doubled, moved or left out."""
    filled = [phase for phase, places in case.given.coverage.items() if len(places) > 1]
    if not filled:
        return None
    phase = random.choice(filled)
    places = list(case.given.coverage[phase])
    one, other = random.sample(range(len(places)), 2)
    match random.randrange(4):
        case 0:
            places[one], places[other] = places[other], places[one]
        case 1:
            places[one] = places[other]
        case 2:
            del places[one]
        case _:
            places.append(places[one])
    return replace(case.given, coverage={**case.given.coverage, phase: tuple(places)})


def without_phase(case: Case, random: Random) -> ProgramCertificate | None:
    """A phase left out of the coverage."""
    if not case.given.coverage:
        return None
    gone = random.choice(list(case.given.coverage))
    return replace(case.given, coverage={k: v for k, v in case.given.coverage.items() if k != gone})


def acquitted(case: Case, random: Random) -> ProgramCertificate | None:
    """A refutation as a proof."""
    if not case.given.refuted:
        return None
    return replace(case.given, refuted=(), coverage=places_of(case.program))


def accused(case: Case, random: Random) -> ProgramCertificate | None:
    """One more thing refuted, somewhere."""
    return replace(case.given, refuted=(*case.given.refuted, some_evidence(case.program, random)))


def other_evidence(case: Case, random: Random) -> ProgramCertificate | None:
    """Evidence with another property, other places or another block."""
    if not case.given.refuted:
        return None
    one, made = random.choice(case.given.refuted), some_evidence(case.program, random)
    field = random.choice(("property", "places", "block", "phase", "sub_operator"))
    changed = replace(one, **{field: getattr(made, field)})
    return replace(case.given, refuted=(changed,))


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (number, buffering, other_digest, coverage, without_phase, acquitted, accused,
                other_evidence)
} | {
    change.__name__: of_levels(change)
    for change in (permuted, exchanged, shortened, lengthened, flattened, shifted)
}  # fmt: skip


def some_evidence(program: Program, random: Random) -> Evidence:
    """Evidence that somebody could make up."""
    ranks = [rank for rank, nodes in enumerate(program.programs) if nodes] or [0]
    count = random.randint(1, 3)
    owners = sorted(random.choice(ranks) for _ in range(count))
    places = tuple((rank, random.randint(0, len(program.programs[rank]))) for rank in owners)
    nodes = [node for instructions in program.programs for node in instructions]
    node = random.choice(nodes) if nodes else None
    return Evidence(
        random.choice(("coverage", "data", "deadlock-freedom", "races")),
        places,
        getattr(node, "block", None),
        getattr(node, "phase", None),
        getattr(node, "sub_operator", None),
    )


def places_of(whole: Program) -> dict[str, tuple[tuple[int, int], ...]]:
    """The places of each phase of the grid, in order of its sub-operators."""
    by_phase: dict[str, list[tuple[tuple[int, ...], tuple[int, int]]]] = {}
    for rank, nodes in enumerate(whole.programs):
        for index, node in enumerate(nodes):
            if isinstance(node, Compute) and node.phase in (whole.grid or {}):
                cell = tuple((node.sub_operator or {}).values())
                by_phase.setdefault(node.phase, []).append((cell, (rank, index)))
    return {
        phase: tuple(place for _, place in sorted(by_phase.get(phase, ())))
        for phase in whole.grid or {}
    }


def is_order(given: ProgramCertificate, program: Program) -> bool:
    """Whether the prover's wait graph has every stretch after all that it waits for."""
    waits = Waits(Matching.of(program), given.buffered)
    levels_: list[int | None] = []
    for rank, levels in enumerate(given.levels):
        stretches = [stretch_ for stretch_ in waits.stretches if stretch_.rank == rank]
        levels_ += [0, *levels, *[None] * len(stretches)][: len(stretches)]
    for node, level_ in enumerate(levels_):
        if level_ is None:
            continue
        ready = waits.before(node)
        while ready:
            earlier = ready.pop()
            if earlier >= len(levels_):  # a meeting: all of its calls
                ready += waits.before(earlier)
            elif earlier < 0 or (levels_[earlier] or 0) >= level_ or levels_[earlier] is None:
                return False
    return True


def is_true(case: Case, changed: ProgramCertificate) -> bool:
    """Whether the claims of a certificate are true by the prover."""
    report = case.report
    if changed.buffered != case.given.buffered:
        report = verify_program(case.program, buffered=changed.buffered)
    refuted = Case(case.program, report, changed).refuted - {"memory", "traffic"}
    claimed = {evidence.property for evidence in changed.refuted}
    if changed.refuted:
        return claimed <= refuted and is_order(changed, case.program)
    right = not refuted and changed.coverage == places_of(case.program)
    return right and is_order(changed, case.program)


def attack(count: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """Alter certificates; (way, what became of it) -> how often. None may be `WRONG`."""
    random, ends = Random(seed), Counter[tuple[str, str]]()
    for case in cases(random):
        name = random.choice(list(WAYS))
        changed = WAYS[name](case, random)
        if changed is None or changed == case.given:
            continue
        try:
            certify_program(changed, case.program)
        except ClaimError:
            ends[name, "refused"] += 1
        else:
            ends[name, "still true" if is_true(case, changed) else "WRONG"] += 1
        if case.program is not lowered("primepar"):
            forged = replace(proved("primepar")[1], program=digest(case.program))
            try:
                certify_program(forged, case.program)
            except ClaimError:
                ends["of another program", "refused"] += 1
            else:
                end = "still true" if is_true(case, forged) else "WRONG"
                ends["of another program", end] += 1
        if ends.total() >= count:
            return ends
    raise AssertionError("cases never end")


if __name__ == "__main__":
    outcomes = attack(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    for (way_name, end), times in sorted(outcomes.items()):
        print(f"{way_name:20} {end:12} {times:6}")
    print(f"{'all':20} {'':12} {outcomes.total():6}")
    sys.exit(any(end == "WRONG" for _, end in outcomes))
