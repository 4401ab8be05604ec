"""The attack `program-certificates`: altered ones are refused, or what they claim is still true.

They are altered as those of primitives are, and in the ways below. What is true is decided by the
explorer, which shares no code with the judge. The tests take a small sample.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import msgspec
from attack_alterations import KINDS, altered
from attack_certificates import offered
from long_runs import TaskResult
from msgspec.structs import replace
from mutants import mutant
from oracle.explore import explore

from primepar.certify.program import ProgramCertificate, digest
from primepar.commands.exercise_catalog import exercises
from primepar.errors import CertificateError
from primepar.partition import PRIMITIVES
from primepar.schedule import Program, Sequence, load_program, lower
from primepar.schedule.transport import Transport
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program
from primepar.verify.report import PROPERTIES, Report

HERE = Path(__file__).resolve().parents[1]
FILES = [
    *sorted(HERE.glob("wrong/*.json")),
    *sorted(HERE.glob("fixed/*.json")),
    *(path for path in sorted((HERE.parent / "docs" / "examples").glob("*.json"))
      if path.name != "config.json"),
    *(exercise.path for exercise in exercises() if exercise.path.suffix == ".json"),
]  # fmt: skip
Case = tuple[Program, ProgramCertificate]
Way = Callable[[Program, ProgramCertificate, Random], ProgramCertificate]


@cache
def program(name: str) -> Program:
    """A registered primitive that is lowered on sides of 2, or a program file."""
    if name not in PRIMITIVES:
        return load_program(Path(name))
    primitive = PRIMITIVES[name]()
    return lower(Sequence.of(primitive, *(2,) * len(primitive.side_names)))


@cache
def proved(name: str, buffered: bool = False) -> tuple[Report, ProgramCertificate]:
    """The report of a program and its certificate."""
    report = verify_program(program(name), name, buffered)
    return report, certificate(program(name), report, Transport(None if buffered else 0))


def case(number: int, random: Random) -> Case | None:
    """A registered primitive or a program file, or in turn a mutant, if that has a certificate."""
    if number % 2:
        whole = mutant(random.randrange(10_000))
        try:
            return whole, certificate(whole, verify_program(whole))
        except CertificateError:
            return None
    name = random.choice([*PRIMITIVES, *map(str, FILES)])
    return program(name), proved(name, buffered="/" in name and random.random() < 0.2)[1]


def _hung(_: Program, given: ProgramCertificate, random: Random) -> ProgramCertificate:
    first = random.randrange(len(given.levels) + 1)
    rest = (-1,) * (len(given.levels) - first)
    return replace(given, levels=(*given.levels[:first], *rest))


WAYS: dict[str, Way] = {
    "some never reached": _hung,
    "another order": lambda _, given, random: replace(
        given, levels=tuple(random.sample(given.levels, len(given.levels)))
    ),
    "every level 0": lambda _, given, __: replace(given, levels=(0,) * len(given.levels)),
    "other transport": lambda _, given, random: replace(
        given, transport=Transport(random.choice((0, 1, None)), random.choice(("free", "peer")))
    ),
    "acquitted": lambda whole, given, _: replace(
        given, refuted=(), proved=tuple(result.name for result in verify_program(whole).properties)
    ),
    "accused": lambda _, given, random: replace(
        given, proved=(), refuted=(*given.refuted, random.choice(PROPERTIES))
    ),
    "another's": lambda whole, _, __: replace(proved("primepar")[1], program=digest(whole)),
}
"""What only a certificate of a program has: levels, a transport, and properties that fail."""


def is_true(program: Program, given: ProgramCertificate) -> bool:
    """Whether what a certificate claims is so, by the explorer where it has such a transport."""
    if given.transport.order != "free" or given.transport.slots:
        report = verify_program(program, transport=given.transport)
        failed = {result.name for result in report.properties if result.verdict == "refuted"}
        asked = {result.name for result in report.properties}
    else:
        seen = explore(program, given.transport.slots is None)
        failed, asked = set(seen.failed), set(seen.asked)
        if seen.stuck:
            failed |= {"races"} & set(given.refuted)  # the explorer does not reach all of them
        if "races" in failed:  # what blocks hold then depends on when a message is carried over
            failed |= {"placement", "completion", "alignment"} & set(given.refuted)
    if given.refuted:
        return set(given.refuted) <= failed
    return not failed and set(given.proved) == asked


def tasks(count: int) -> range:
    """The numbers of the alterations."""
    return range(count)


def decide(number: int) -> TaskResult | None:
    """Alter a certificate and offer it; None where there is nothing to alter."""
    random, way = Random(f"program {number}"), (*WAYS, *KINDS)[number % len((*WAYS, *KINDS))]
    drawn = case(number, random)
    if drawn is None:
        return None
    whole, given = drawn
    text = msgspec.json.encode(given)
    if way in WAYS:
        changed: bytes | None = msgspec.json.encode(WAYS[way](whole, given, random))
    else:
        changed = altered(text, way, random, msgspec.json.encode(proved("primepar")[1]))
    if changed is None or changed == text:
        return None
    end = offered(changed, whole)
    is_wrong = end != "refused"
    if end == "accepted":
        claim = msgspec.json.decode(changed, type=ProgramCertificate)
        is_wrong = not is_true(whole, claim)
        end = "accepted and false" if is_wrong else "still true"
    return TaskResult({"altered": way}, {end.partition(":")[0]: 1}, is_wrong, end * is_wrong)
