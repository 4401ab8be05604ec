"""Proof of a sequence for every length of every member, by the nesting theorem.

The theorem, each member as the sequence reads it, and the conditions are asked of Z3. What they do
not prove is looked for on small meshes of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod
from time import perf_counter

import z3

from primepar.schedule.movement import Movement
from primepar.schedule.nesting import Nesting, Sides
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence
from primepar.verify.counterexample.primitive import of_mesh
from primepar.verify.nesting.conditions import conditions
from primepar.verify.nesting.language import Lemma, why_not_proved
from primepar.verify.nesting.theorem import lemmas
from primepar.verify.primitive.proof import PROVED, Obligation, verify_primitive
from primepar.verify.primitive.search import FAULTS, MOST_DEVICES, MOST_DEVICES_AFTER, Fault
from primepar.verify.report import PropertyResult, Report

LONGEST_SIDE, MOST_DEVICES_OF_ALL = 4, 36
"""Of the meshes of a sequence on which a counterexample is looked for."""
STANDS_ON = {"completion": ("coverage",)}
"""Property -> others that its lemmas take for granted of the members."""


def verify_nesting(nesting: Nesting, target: str | None = None, timeout: float = 60.0) -> Report:
    """Prove a sequence for every length of every side, within `timeout` seconds.

    A property that is not proved is refuted if some small mesh of the sequence breaks it, with the
    smallest as the counterexample, and unknown otherwise. Races are asked where all else is proved,
    traffic and memory never, as a sequence has no formulas. Raises `PrimitiveError` if the maps of
    a member do not give slices.
    """
    deadline = perf_counter() + timeout
    asked = list(_theorem(deadline))
    asked += _members(nesting, deadline)
    asked += conditions(nesting, deadline)
    open_names = {each.property for each in asked if each.reason} & set(PROVED)
    open_names |= {name for name, others in STANDS_ON.items() if open_names & set(others)}
    faults = _smallest_faults(nesting, open_names, asked, deadline) if open_names else {}
    names = PROVED if open_names else (*PROVED, "races")
    results = [_result(name, asked, nesting, faults.get(name)) for name in names]
    return Report.of(target or ",".join(nesting.names), results, nesting.scope)


def _theorem(deadline: float) -> Iterator[Obligation]:
    """Every lemma, asked once in a process."""
    known = known_lemmas()
    for lemma, proved in known.items():
        start = perf_counter()
        counter = (*lemma.given, z3.Not(lemma.then))
        reason = None
        if not proved:
            reason = why_not_proved(counter, deadline, "Z3 has a counterexample")
        known[lemma] = reason is None
        sentence = f"of any nesting: {lemma.sentence}"
        yield Obligation(lemma.property, sentence, perf_counter() - start, reason)


@cache
def known_lemmas() -> dict[Lemma, bool]:
    """Every lemma, and whether it has been proved in this process."""
    return dict.fromkeys(lemmas(), False)


def _members(nesting: Nesting, deadline: float) -> Iterator[Obligation]:
    """What each kind of member proves; `sides` are those of the nesting with its counterexample."""
    known: set[type[Primitive]] = set()
    before: Sides = ()
    left = (1,) * len(nesting.side_names)
    for member, read, name in zip(nesting.members, nesting.read, nesting.names, strict=True):
        count = len(member.side_names)
        left = left[count:]
        if type(member) not in known:
            known.add(type(member))
            for result in verify_primitive(read, name, deadline - perf_counter()).properties:
                wrong = result.details.sides if result.details else None
                sides = (*before, *wrong.values(), *left) if wrong else None
                why = (result.counterexample or "").partition("\n")[0] or result.reason
                reason = None if result.verdict == "proved" else why
                yield Obligation(result.name, name, result.seconds, reason, sides)
        before += (1,) * count


def _result(
    name: str, asked: list[Obligation], nesting: Nesting, fault: Fault | None
) -> PropertyResult:
    own = [each for each in asked if each.property == name]
    others = [each for each in asked if each.property in STANDS_ON.get(name, ()) and each.reason]
    seconds = sum(each.seconds for each in own)
    if fault is not None:
        sides = dict(zip(nesting.side_names, fault.sides, strict=True))
        details = of_mesh(nesting.of(fault.sides), sides, name, fault.sentence)
        took = seconds + fault.seconds
        return PropertyResult(name, "refuted", took, fault.sentence, details=details)
    reasons = [f"{each.sentence}: {each.reason}" for each in own if each.reason]
    reasons += [f"{each.sentence}: {each.property} is not proved" for each in others]
    if reasons:
        return PropertyResult(name, "unknown", seconds, reason=reasons[0])
    return PropertyResult(name, "proved", seconds)


def _smallest_faults(
    nesting: Nesting, open_names: set[str], asked: list[Obligation], deadline: float
) -> dict[str, Fault]:
    """Property -> its fault on the smallest mesh that has one, as far as the time goes."""
    found: dict[str, Fault] = {}
    for sides in _choices(nesting, {each.sides for each in asked if each.sides}):
        movement = Movement(nesting.of(sides))
        if found and movement.sequence.ranks > MOST_DEVICES_AFTER:
            break
        for name in sorted(open_names & FAULTS.keys() - found.keys()):
            start = perf_counter()
            fault = next(FAULTS[name](movement), None) if start < deadline else None
            if fault is not None:
                sentence = f"{_mesh(nesting, movement.sequence, sides)}: {fault}"
                found[name] = Fault(sides, sentence, perf_counter() - start)
    return found


def _choices(nesting: Nesting, hints: set[Sides]) -> list[Sides]:
    """Sides worth a look, fewest devices first."""
    short = set(product(range(1, LONGEST_SIDE + 1), repeat=len(nesting.side_names)))
    devices = {sides: prod(nesting.of(sides).axis_lengths) for sides in short | hints}
    few = [
        sides
        for sides, count in devices.items()
        if count <= (MOST_DEVICES if sides in hints else MOST_DEVICES_OF_ALL)
    ]
    return sorted(few, key=lambda sides: (devices[sides], sides))


def _mesh(nesting: Nesting, sequence: Sequence, sides: Sides) -> str:
    """How sentences name a mesh, `s1=1, s2=2 (1x2x2 devices)`."""
    named = zip(nesting.side_names, sides, strict=True)
    mesh = "x".join(map(str, sequence.axis_lengths)) or "1"
    told = ", ".join(f"{name}={side}" for name, side in named) or "any side"
    return f"{told} ({mesh} device{'s' * (sequence.ranks > 1)})"
