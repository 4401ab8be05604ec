"""`make attack`, its second part: altered certificates of primitives, and certificates of others.

Every certificate is altered and offered for its own primitive and for a wrong one; and as it is for
every wrong one, of `tests/wrong` and of the generated ones. It ends with 1 if one is accepted for a
wrong primitive, or if the checker ends in a traceback. What is accepted for a right primitive is
counted by the kind of alteration: it proves something true in another way than the prover.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from attack_alterations import KINDS, altered
from attack_judge import judge
from attack_maps import NAME, generated
from attack_methods import METHODS
from long_runs import judged

from primepar import Primitive
from primepar.certify import (
    PrimitiveCertificate,
    certify_primitive,
    load_certificate,
    save_certificate,
)
from primepar.errors import PrimeParError
from primepar.partition import PRIMITIVES
from primepar.targets import load_primitive
from primepar.verify.certificate.primitive import primitive_certificate

HERE = Path(__file__).resolve().parent
GENERATED = 60
"""Generated wrong primitives that certificates are offered for."""


def written(primitive: Primitive, path: Path) -> bytes:
    """The certificate of a primitive as a file. Raises `PrimeParError` if it has none."""
    save_certificate(primitive_certificate(primitive), path)
    return path.read_bytes()


def offered(text: bytes, primitive: Primitive) -> str:
    """What the checker makes of a file that is offered for a primitive."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        path.write_bytes(text)
        try:
            given = load_certificate(path)
            if not isinstance(given, PrimitiveCertificate):
                return "refused"  # as the command does
            certify_primitive(given, primitive)
        except PrimeParError:
            return "refused"
        except Exception as error:
            return f"crashed: {type(error).__name__}: {error}"
    return "accepted"


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
    found = {}
    with TemporaryDirectory() as folder:
        for name, primitive in right().items():
            try:
                found[name] = written(primitive, Path(folder) / "certificate.json")
            except PrimeParError:
                continue
    return found


@cache
def wrong() -> dict[str, Primitive]:
    """Primitives that the judge calls wrong and that can be loaded."""
    return dict(_wrong())


def _wrong() -> Iterator[tuple[str, Primitive]]:
    for path in sorted(HERE.glob("wrong/*.py")):
        name = path.stem.title().replace("_", "")
        if judge(path.read_text(encoding="utf-8"), name).verdict == "wrong":
            yield path.name, load_primitive(f"{path}:{name}")
    count = 0
    for seed in range(100_000):
        made = generated(seed)
        if not made.in_language or judge(made.source, NAME).verdict != "wrong":
            continue
        try:
            yield f"generated {seed}", loaded(made.source)
        except PrimeParError:
            continue
        count += 1
        if count == GENERATED:
            return


class Offer(NamedTuple):
    """One certificate that is offered for one primitive."""

    kind: str
    certificate: str
    primitive: str
    number: int


class Answered(NamedTuple):
    """How an offer ended."""

    offer: Offer
    is_right: bool
    answer: str
    """`accepted`, `refused`, `same` for one that says what the unaltered one does, or a crash."""
    also_wrong: tuple[str, ...] = ()
    """If accepted for a right primitive: wrong ones for which it is accepted too."""


def offers(count: int, names: list[str], wrongs: list[str]) -> Iterator[Offer]:
    """Every certificate for every wrong primitive; then alterations, for right and for wrong."""
    for name in names:
        for other in wrongs:
            yield Offer("another's", name, other, 0)
        for other in right():
            if other.removeprefix("generated ") != name.removeprefix("generated "):
                yield Offer("another's", name, other, 0)
    for number in range(count):
        kind, name = KINDS[number % len(KINDS)], names[number // len(KINDS) % len(names)]
        yield Offer(kind, name, name, number)
        yield Offer(kind, name, Random(f"wrong {number}").choice(wrongs), number)


def answer(offer: Offer) -> Answered | None:
    """Alter the certificate, if that is asked, and offer it; None where nothing could be altered."""
    text = certificates()[offer.certificate]
    primitive = right().get(offer.primitive) or wrong()[offer.primitive]
    is_right = offer.primitive in right()
    if offer.kind == "another's":
        return Answered(offer, is_right, offered(text, primitive))
    random = Random(f"{offer.number}")
    other = certificates()[random.choice([name for name in certificates()])]
    given = altered(text, offer.kind, random, other)
    if given is None:
        return None
    said = offered(given, primitive)
    if said != "accepted" or not is_right:
        return Answered(offer, is_right, said)
    if _equal(given, text):
        return Answered(offer, is_right, "same")
    also = tuple(name for name, each in wrong().items() if offered(given, each) == "accepted")
    return Answered(offer, is_right, said, also)


def _equal(one: bytes, other: bytes) -> bool:
    """Whether two files are read as the same certificate."""
    read: list[Any] = [
        msgspec.json.decode(each, type=PrimitiveCertificate) for each in (one, other)
    ]
    return bool(read[0] == read[1])


def main() -> int:
    """Print the counts; 0 if all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--altered", type=int, default=2_000, help="alterations")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args()
    names, wrongs = list(certificates()), list(wrong())
    asked = list(offers(options.altered, names, wrongs))
    print(
        f"certificates of {len(names)} of {len(right())} right primitives; {len(wrongs)} wrong ones"
    )
    found = judged("certificates", answer, asked, options.jobs, len(asked))
    return report([each for each in found if each is not None])


def report(found: list[Answered]) -> int:
    """Print what was accepted, and give the exit code."""
    columns = [(is_right, said) for is_right in (True, False)
               for said in ("refused", "accepted", "same", "crashed")]  # fmt: skip
    counts = Counter((each.offer.kind, each.is_right, each.answer.split(":")[0]) for each in found)
    print(f"{'':16}" + "".join(f"{'right ' if yes else 'wrong '}{said}".rjust(16)
                                for yes, said in columns))  # fmt: skip
    for kind in ("another's", *KINDS):
        print(f"{kind:16}" + "".join(f"{counts[kind, *each]:16}" for each in columns))
    bad = [each for each in found if is_bad(each)]
    for each in sorted(found):
        if each.answer not in ("refused", "same"):
            offer, also = each.offer, " ".join(each.also_wrong)
            print(f"{'BAD ' * is_bad(each)}{offer.kind}, {offer.certificate} for {offer.primitive}, "
                  f"number {offer.number}: {each.answer} {also}")  # fmt: skip
    print(f"accepted for a wrong primitive, or crashed: {len(bad)} of {len(found)}")
    return 1 if bad else 0


def is_bad(each: Answered) -> bool:
    """Whether the checker is wrong about it."""
    accepted = each.answer == "accepted" and not each.is_right
    return accepted or each.answer.startswith("crashed") or bool(each.also_wrong)


if __name__ == "__main__":
    sys.exit(main())
