"""The attack `certificates`: altered certificates of primitives, and those of others.

Every certificate is altered and offered for its own primitive and for a wrong one; and as it is for
every wrong one, of `tests/wrong` and of the generated ones. The writer is asked for certificates of
wrong ones too. None may be accepted for a wrong primitive, or end in a traceback. What is accepted
for a right primitive is listed with what was altered: it proves what is true in another way than
the prover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from attack_alterations import KINDS, altered
from attack_maps import NAME, generated
from attack_methods import METHODS
from attack_oracle import oracle
from attack_score import is_early, ruled
from long_runs import TaskResult

from primepar import Primitive
from primepar.api.target import load_primitive
from primepar.certify import (
    PrimitiveCertificate,
    certify_primitive,
    load_certificate,
    save_certificate,
)
from primepar.certify.cases import Answer
from primepar.certify.certificate_format import map_texts
from primepar.certify.claims import Claim, Subject, claims
from primepar.certify.primitive import holds
from primepar.certify.program import ProgramCertificate, certify_program
from primepar.errors import PrimeParError
from primepar.partition import PRIMITIVES
from primepar.schedule import Program
from primepar.schedule.deadline import UnansweredError, deadline
from primepar.schedule.expression import parse
from primepar.verify.certificate.answers import answers as answers_of
from primepar.verify.primitive.proof import prove

HERE = Path(__file__).resolve().parents[1]
WRONG, OFFERED, OUTSIDE = 120, 60, 40
"""Generated wrong primitives whose own certificates are asked for; how many of them are offered
those of others; and how many are outside the language."""

TOO_FEW_STEPS = METHODS["summa"].source(NAME).replace("return s\n", "return where(s >= 2, 1, s)\n")
"""Its certificate was once accepted, with answers made for it: the count of steps was not asked."""


SECONDS = 5.0
"""Limit of the proof of a wrong one: most time would go into a certificate that there is not."""


def written(primitive: Primitive, seconds: float = 1e5) -> bytes | None:
    """The certificate of a primitive as a file; None if it has none."""
    try:
        with deadline(seconds):
            made = prove(primitive).certificate
    except (PrimeParError, UnansweredError):
        return None
    if made is None:
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        save_certificate(made, path)
        return path.read_bytes()


def offered(text: bytes, target: Primitive | Program) -> str:
    """What the checker makes of a file that is offered for a primitive, or for a program."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        path.write_bytes(text)
        try:
            match load_certificate(path), target:
                case PrimitiveCertificate() as given, Primitive():
                    certify_primitive(given, target)
                case ProgramCertificate() as given, Program():
                    certify_program(given, target)
                case _:
                    return "refused"  # as the command does
        except PrimeParError:
            return "refused"
        except Exception as error:
            return f"crashed: {type(error).__name__}: {error}"
    return "accepted"


def forged(text: bytes, primitive: Primitive) -> bytes | None:
    """A certificate made over to another primitive, with new answers; None if a claim fails.

    The numbers of slices and the expressions of witnesses stay.
    """
    given = msgspec.json.decode(text, type=PrimitiveCertificate)
    try:
        slices = {dim: tuple(map(parse, counts)) for dim, counts in given.slices.items()}
        made = {
            claim.name: _answered(claim, given.witnesses.get(claim.name, {}))
            for claim in claims(Subject(primitive, slices, given.repeats))
        }
    except (PrimeParError, LookupError):
        return None
    over = msgspec.structs.replace(given, maps=map_texts(primitive), answers=made)
    return msgspec.json.encode(over)


def _answered(claim: Claim, witnesses: dict[str, str]) -> tuple[Answer, ...]:
    nodes = {name: parse(text) for name, text in witnesses.items()}
    return answers_of(lambda case: holds(claim, nodes, case))


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two files are read as the same certificate."""
    first, second = (msgspec.json.decode(text, type=PrimitiveCertificate) for text in (one, other))
    return bool(first == second)


def loaded(source: str) -> Primitive:
    """The primitive of a generated source. Raises `PrimeParError`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "attack.py"
        path.write_text(source, encoding="utf-8")
        return load_primitive(f"{path}:{NAME}")


@cache
def right() -> dict[str, Primitive]:
    """Right primitives: those of the library, and the methods of the generator."""
    texts = {f"generated {name}": loaded(draft.source(NAME)) for name, draft in METHODS.items()}
    return {**{name: made() for name, made in PRIMITIVES.items()}, **texts}


@cache
def certificates() -> dict[str, bytes]:
    """The certificates of those that have one."""
    written_ = {name: written(primitive) for name, primitive in right().items()}
    return {name: text for name, text in written_.items() if text is not None}


@cache
def wrong() -> dict[str, Primitive]:
    """Primitives that the oracle finds wrong and that can be loaded, those of files first."""
    files: dict[str, Primitive] = {}
    for path in sorted(HERE.glob("wrong/*.py")):
        name = path.stem.title().replace("_", "")
        if oracle(path.read_text(encoding="utf-8"), name).verdict == "wrong":
            files[path.name] = load_primitive(f"{path}:{name}")
    files["too few steps"] = loaded(TOO_FEW_STEPS)
    outside, inside = generated_wrong(OUTSIDE, False), generated_wrong(WRONG, True)
    return {**files, **dict(outside), **dict(inside)}


def generated_wrong(count: int, in_language: bool) -> Iterator[tuple[str, Primitive]]:
    """The first generated ones that can be loaded, of those in the language or outside it.

    Outside it what is certified is the expression that was read: it has to be wrong up to side 3.
    """
    for seed in range(20 * count):
        made = generated(seed)
        is_meant = made.in_language == in_language and is_early(made)
        if not is_meant or ruled(made).verdict != "wrong":
            continue
        try:
            yield f"generated {seed}", loaded(made.source)
        except PrimeParError:
            continue
        count -= 1
        if count == 0:
            return


def like(name: str) -> list[str]:
    """Certificates of the method that a wrong primitive was made of; of the library for others."""
    if not name.startswith("generated "):
        return [entry for entry in certificates() if entry in PRIMITIVES]
    method = generated(int(name.split()[1])).method
    if method == "outside":
        return ["primepar", "summa"]
    return [entry for entry in certificates() if entry.removeprefix("generated ") == method]


def few_wrong() -> list[str]:
    """Names of those that every certificate is offered."""
    names = list(wrong())
    return names[: len(names) - WRONG + OFFERED]


class Offer(NamedTuple):
    """One certificate that is offered for one primitive."""

    kind: str
    certificate: str
    primitive: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}, {self.certificate} for {self.primitive}"


def answered(
    offer: Offer, is_right: bool, outcome: str, difference: str = "", also_wrong: Sequence[str] = ()
) -> TaskResult:
    """What became of an offer: `outcome` is the checker's answer.

    It is `same` for one that is read as the unaltered one is, and `unwritten` for a crash of the
    writer, on a primitive that nobody proved. `also_wrong` are wrong primitives for which one that
    is accepted for a right one is accepted too.
    """
    is_wrong = outcome == "accepted" and not is_right
    is_wrong |= outcome.startswith("crashed") or bool(also_wrong)
    column = f"{'right' if is_right else 'wrong'} {outcome.partition(':')[0]}"
    also = f"; accepted too for {', '.join(also_wrong)}" if also_wrong else ""
    is_noted = is_wrong or outcome == "accepted"
    return TaskResult({"offered": offer.kind}, {column: 1}, is_wrong,
                  f"{outcome} {difference}{also}" * is_noted)  # fmt: skip


def tasks(count: int) -> list[Offer]:
    """All that is offered, `count` alterations among it."""
    return list(_offers(count))


def _offers(count: int) -> Iterator[Offer]:
    names, wrongs = list(certificates()), few_wrong()
    for other in wrong():
        yield Offer("its own", other, other, 0)
        for name in like(other):
            yield Offer("forged", name, other, 0)
    for name in names:
        for other in (*wrongs, *right()):
            if other != name:
                yield Offer("another's", name, other, 0)
    for number in range(count):
        kind, name = KINDS[number % len(KINDS)], names[number // len(KINDS) % len(names)]
        yield Offer(kind, name, name, number)
        yield Offer(kind, name, Random(f"wrong {number}").choice(wrongs), number)


def decide(offer: Offer) -> TaskResult | None:
    """Offer a certificate, altered if that is asked; None where there is none."""
    is_right = offer.primitive in right()
    primitive = (right() if is_right else wrong())[offer.primitive]
    if offer.kind in ("its own", "forged"):
        return _made(offer, primitive)
    text = certificates()[offer.certificate]
    if offer.kind == "another's":
        return answered(offer, is_right, offered(text, primitive))
    kind, given = _altered(text, offer)
    offer = offer._replace(kind=kind)
    outcome = offered(given, primitive)
    if outcome != "accepted" or not is_right:
        return answered(offer, is_right, outcome)
    if is_same(given, text):
        return answered(offer, is_right, "same")
    differs = difference(msgspec.json.decode(text), msgspec.json.decode(given))
    also = tuple(name for name in few_wrong() if offered(given, wrong()[name]) == "accepted")
    return answered(offer, is_right, outcome, differs, also)


def _altered(text: bytes, offer: Offer) -> tuple[str, bytes]:
    """The alteration of a number, of another kind where nothing can be altered as it is asked."""
    random, kind = Random(f"alteration {offer.number}"), offer.kind
    while True:
        other = certificates()[random.choice(list(certificates()))]
        given = altered(text, kind, random, other)
        if given is not None:
            return kind, given
        kind = random.choice((offer.kind, *KINDS))


def _made(offer: Offer, primitive: Primitive) -> TaskResult | None:
    """What the checker makes of a certificate that is written for a wrong primitive, if one is."""
    try:
        if offer.kind == "its own":
            text = written(primitive, SECONDS)
        else:
            text = forged(certificates()[offer.certificate], primitive)
    except Exception as error:
        return answered(offer, False, f"unwritten: {type(error).__name__}: {error}")
    return None if text is None else answered(offer, False, offered(text, primitive))


def difference(one: Any, other: Any, path: str = "") -> str:
    """The first place where two JSON values differ."""
    if type(one) is type(other) and isinstance(one, dict | list) and len(one) == len(other):
        for key in list(one) if isinstance(one, dict) else range(len(one)):
            if isinstance(one, dict) and key not in other:
                return f"{path}: no {key}"
            if one[key] != other[key]:
                return difference(one[key], other[key], f"{path}.{key}")
    return f"{path}: {str(one)[:60]} -> {str(other)[:60]}"
