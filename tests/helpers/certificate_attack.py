"""Certificates of programs, altered in many ways: none may be taken for what is not true.

What is true is decided by the explorer, which shares no code with the judge. `python
tests/helpers/certificate_attack.py 2000` alters as many and prints what became of them. The test
run has a small sample.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from certificate_cases import FILES, lowered, proved
from certificate_cases import program as program_of
from msgspec.structs import replace
from mutants import mutant
from oracle.explore import explore

from primepar.certify.program import ProgramCertificate, certify_program, digest
from primepar.errors import CertificateError, ClaimError
from primepar.partition import PRIMITIVES
from primepar.schedule import Program
from primepar.schedule.transport import Transport
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program
from primepar.verify.report import PROPERTIES

Case = tuple[Program, ProgramCertificate]
Way = Callable[[Program, ProgramCertificate, Random], ProgramCertificate]


def cases(random: Random) -> Iterator[Case]:
    """Registered primitives, program files and mutants, in turn."""
    names = [*PRIMITIVES, *map(str, FILES)]
    while True:
        name = random.choice(names)
        yield program_of(name), proved(name, buffered="/" in name and random.random() < 0.2)[1]
        whole = mutant(random.randrange(10_000))
        try:
            yield whole, certificate(whole, verify_program(whole))
        except CertificateError:
            continue


def on_levels(change: Callable[[list[int], Random], None]) -> Way:
    """A way that changes the levels."""

    def way(_: Program, given: ProgramCertificate, random: Random) -> ProgramCertificate:
        levels = list(given.levels)
        change(levels, random)
        return replace(given, levels=tuple(levels))

    return way


def _one(levels: list[int], random: Random) -> None:
    if levels:
        levels[random.randrange(len(levels))] += random.choice((-2, -1, 1, 2, 7))


def _hung(levels: list[int], random: Random) -> None:
    """Some are never reached."""
    first = random.randrange(len(levels) + 1)
    levels[first:] = [-1 for _ in levels[first:]]


def _exchanged(levels: list[int], random: Random) -> None:
    if len(levels) > 1:
        first = random.randrange(len(levels) - 1)
        levels[first : first + 2] = levels[first + 1], levels[first]


def _flat(levels: list[int], random: Random) -> None:
    levels[:] = [0 for _ in levels]


WAYS: dict[str, Way] = {
    "one level": on_levels(_one),
    "all levels in another order": on_levels(lambda levels, random: random.shuffle(levels)),
    "two levels exchanged": on_levels(_exchanged),
    "some never reached": on_levels(_hung),
    "a level left out": on_levels(lambda levels, random: levels.__delitem__(slice(-1, None))),
    "a level more": on_levels(lambda levels, random: levels.append(random.randrange(5))),
    "every level 0": on_levels(_flat),
    "other buffers": lambda _, given, random: replace(
        given, transport=Transport(random.choice((0, 1, None)), given.transport.order)
    ),
    "other order": lambda _, given, random: replace(
        given, transport=Transport(given.transport.slots, random.choice(("communicator", "peer")))
    ),
    "other digest": lambda _, given, random: replace(given, program=given.program[::-1]),
    "acquitted": lambda whole, given, random: replace(
        given, refuted=(), proved=tuple(result.name for result in verify_program(whole).properties)
    ),
    "accused": lambda _, given, random: replace(
        given, proved=(), refuted=(*given.refuted, random.choice(PROPERTIES))
    ),
    "fewer proved": lambda _, given, random: replace(given, proved=given.proved[1:]),
    "of another program": lambda whole, _, random: replace(
        proved("primepar")[1], program=digest(whole)
    ),
}


def is_true(program: Program, given: ProgramCertificate) -> bool:
    """Whether what a certificate claims is so, by the explorer where it has such a transport."""
    if given.transport.order != "free" or given.transport.slots:
        transport = given.transport
        report = verify_program(program, transport=transport)
        failed = {result.name for result in report.properties if result.verdict == "refuted"}
        asked = {result.name for result in report.properties}
    else:
        seen = explore(program, given.transport.slots is None)
        failed, asked = set(seen.failed), set(seen.asked)
        if seen.stuck:
            failed |= {"races"} & set(given.refuted)  # the explorer does not reach all of them
    return (
        set(given.refuted) <= failed if given.refuted else not failed and set(given.proved) == asked
    )


def attack(count: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """Alter certificates; (way, what became of it) -> how often. None may be `WRONG`."""
    random, ends = Random(seed), Counter[tuple[str, str]]()
    for program, given in cases(random):
        name = random.choice(list(WAYS))
        changed = WAYS[name](program, given, random)
        if changed == given or (name == "of another program" and program is lowered("primepar")):
            continue
        try:
            certify_program(changed, program)
        except ClaimError:
            ends[name, "refused"] += 1
        else:
            ends[name, "still true" if is_true(program, changed) else "WRONG"] += 1
        if ends.total() >= count:
            return ends
    raise AssertionError("cases never end")


if __name__ == "__main__":
    outcomes = attack(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    for (way_name, end), times in sorted(outcomes.items()):
        print(f"{way_name:28} {end:12} {times:6}")
    print(f"{'all':28} {'':12} {outcomes.total():6}")
    sys.exit(any(end == "WRONG" for _, end in outcomes))
