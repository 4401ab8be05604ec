"""The nesting theorem as lemmas for Z3: what is right of both members is right of their nesting.

Of a member only the claims of its own proof are known. A nested device is a pair of devices, a
nested step a pair of steps of which the inner one is fast, and a nested block a pair of blocks; of
three members the third is nested in the first two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import z3

from primepar.schedule.operators import PHASES
from primepar.verify.every_size.lemmas import Lemma
from primepar.verify.primitive.z3_symbols import Term

BOOL, INT = z3.BoolSort(), z3.IntSort()


def lemma_of(property_: str, sentence: str, given: tuple[Term, ...], then: Term) -> Lemma:
    """What holds of a nesting if all that is given holds of its members."""
    return Lemma(sentence, (property_,), (), then, given)


@dataclass(frozen=True)
class Member:
    """One of two members; its blocks are those of one tensor, or its sub-operators."""

    name: str

    @cached_property
    def _devices(self) -> Term:
        return z3.DeclareSort(f"device of {self.name}")

    @cached_property
    def _blocks(self) -> Term:
        return z3.DeclareSort(f"block of {self.name}")

    @cached_property
    def steps(self) -> Term:
        """How many steps a phase has."""
        return z3.Int(f"steps of {self.name}")

    def device(self, tag: str = "") -> Term:
        """Any device."""
        return z3.Const(f"device{tag} of {self.name}", self._devices)

    def block(self, tag: str = "") -> Term:
        """Any block."""
        return z3.Const(f"block{tag} of {self.name}", self._blocks)

    def step(self, tag: str = "") -> Term:
        """Any step."""
        return z3.Int(f"t{tag} of {self.name}")

    @cached_property
    def works(self) -> z3.FuncDeclRef:
        """A device has a block in its product at a step, or does that sub-operator."""
        return z3.Function(f"works {self.name}", self._devices, INT, self._blocks, BOOL)

    def has(self, name: str) -> z3.FuncDeclRef:
        """A relation of devices and blocks."""
        return z3.Function(f"{name} {self.name}", self._devices, self._blocks, BOOL)


OUTER, INNER = Member("the outer member"), Member("the inner member")
MEMBERS = (OUTER, INNER)


def every(variables: list[Term], given: Term, then: Term) -> Term:
    """Whatever the variables are, the one follows from the other."""
    return z3.ForAll(variables, z3.Implies(given, then))


def lemmas() -> Iterator[Lemma]:
    """All lemmas of the theorem, property by property."""
    yield from _indices()
    yield _once()
    yield _each()
    yield _sent()
    yield _resident("placement", "what a step needs is resident on some device")
    yield from _sums()
    yield _resident("alignment", "every block is resident on some device")
    yield _stays()
    yield _ends_on_some()
    yield from _ranks()
    yield from _in_flight()


# Coverage


def _indices() -> Iterator[Lemma]:
    """A pair of digits is one index: of a slice, of a device and of a step."""
    outer, inner, other, another, count, radix = z3.Ints("o i o' i' count radix")
    digits = (inner >= 0, inner < radix, another >= 0, another < radix)
    flat = outer * radix + inner
    yield lemma_of(
        "coverage",
        "no two pairs of digits make the same index",
        (*digits, flat == other * radix + another),
        z3.And(outer == other, inner == another),
    )
    yield lemma_of(
        "coverage",
        "there are as many indices as pairs of digits",
        (outer >= 0, outer < count, *digits[:2]),
        z3.And(flat >= 0, flat < count * radix),
    )
    next_inner = z3.And(other == outer, another == inner + 1)
    next_outer = z3.And(other == outer + 1, another == 0)
    yield lemma_of(
        "coverage",
        "after a step comes the next inner one, after the last of these the next outer one",
        (*digits, other * radix + another == flat + 1),
        z3.If(inner + 1 < radix, next_inner, next_outer),
    )


def _once() -> Lemma:
    given, both, alike = [], [], []
    for member in MEMBERS:
        one, other, t, then, what = (
            member.device(), member.device("'"), member.step(), member.step("'"), member.block()
        )  # fmt: skip
        twice = z3.And(member.works(one, t, what), member.works(other, then, what))
        same = z3.And(one == other, t == then)
        given.append(every([one, other, t, then, what], twice, same))
        both.append(twice)
        alike.append(same)
    sentence = "no sub-operator is computed at two places or steps"
    return lemma_of("coverage", sentence, tuple(given), z3.Implies(z3.And(both), z3.And(alike)))


def _each() -> Lemma:
    given, done, coordinates = [], [], []
    for member in MEMBERS:
        device, t, what = member.device(), member.step(), member.block()
        done.append(member.works(device, t, what))
        given.append(z3.ForAll([what], z3.Exists([device, t], done[-1])))
        coordinates += [device, t]
    sentence = "every sub-operator is computed at some place and step"
    return lemma_of("coverage", sentence, tuple(given), z3.Exists(coordinates, z3.And(done)))


# Placement


def _held(member: Member, step: Term, before: Term) -> tuple[Term, Term]:
    """A device needs a block at a step; some device had it at another step."""
    need, has = member.works(member.device(), step, member.block()), member.works(
        member.device("'"), before, member.block()
    )  # fmt: skip
    return need, has


def _goes_on(member: Member) -> Term:
    """What a step needs, some device had at the step before."""
    t = member.step("?")
    need, has = _held(member, t + 1, t)
    within = z3.And(t >= 0, t + 1 < member.steps, need)
    return every([member.device(), member.block(), t], within, z3.Exists([member.device("'")], has))


def _turns(member: Member) -> Term:
    """What the first step needs, some device had at the last."""
    need, has = _held(member, z3.IntVal(0), member.steps - 1)
    return every([member.device(), member.block()], need, z3.Exists([member.device("'")], has))


def _sent() -> Lemma:
    """Without homes; the inner member begins again where the outer one goes on."""
    carries = INNER.step() + 1 == INNER.steps
    later = (z3.If(carries, OUTER.step() + 1, OUTER.step()),
             z3.If(carries, 0, INNER.step() + 1))  # fmt: skip
    within = [z3.And(member.step() >= 0, member.step() < member.steps, then < member.steps)
              for member, then in zip(MEMBERS, later, strict=True)]  # fmt: skip
    pairs = [
        _held(member, then, member.step()) for member, then in zip(MEMBERS, later, strict=True)
    ]
    has = z3.Exists([member.device("'") for member in MEMBERS], z3.And([has for _, has in pairs]))
    need = z3.And([*within, *(need for need, _ in pairs)])
    turns = z3.Implies(OUTER.steps > 1, _turns(INNER))
    return lemma_of(
        "placement",
        "what a step needs, some device had at the step before",
        (_goes_on(OUTER), _goes_on(INNER), turns),
        z3.Implies(need, has),
    )


def _resident(name: str, sentence: str) -> Lemma:
    """With homes."""
    given, resident = [], []
    for member in MEMBERS:
        resident.append(member.has("home of")(member.device(), member.block()))
        given.append(z3.ForAll([member.block()], z3.Exists([member.device()], resident[-1])))
    homes = z3.Exists([member.device() for member in MEMBERS], z3.And(resident))
    return lemma_of(name, sentence, tuple(given), homes)


# Completion


def _sums() -> Iterator[Lemma]:
    """One sum over a step: parts hop and join others, then new products are added.

    It is the step of an induction, of any movement in which no two devices take one part.
    """
    device, product = z3.DeclareSort("device"), z3.DeclareSort("product")
    part, new = (z3.Function(name, device, product, BOOL) for name in ("in the part of", "new on"))
    takes, source = z3.Function("takes", device, BOOL), z3.Function("source", device, device)
    d, e, one, other = z3.Consts("d e one other", device)
    p, what = z3.Consts("p what", product)

    def after(device_: Term, has: Term) -> Term:
        left = z3.Exists([d], z3.And(takes(d), source(d) == device_))
        came = z3.And(takes(device_), part(source(device_), has))
        return z3.Or(z3.And(part(device_, has), z3.Not(left)), came, new(device_, has))

    in_one_part = every([d, e, p], z3.And(part(d, p), part(e, p)), d == e)
    computed_once = every([d, e, p], z3.And(new(d, p), z3.Or(new(e, p), part(e, p))),
                           z3.And(d == e, z3.Not(part(e, p))))  # fmt: skip
    one_taker = every([d, e], z3.And(takes(d), takes(e), source(d) == source(e)), d == e)
    yield lemma_of(
        "completion",
        "no product is in the parts of two devices after a step",
        (in_one_part, computed_once, one_taker),
        z3.Implies(z3.And(after(one, what), after(other, what)), one == other),
    )
    yield lemma_of(
        "completion",
        "every product is in the part of some device after a step",
        (z3.Or(part(one, what), new(one, what)),),
        z3.Exists([e], after(e, what)),
    )
    home = z3.Function("sends its part to", device, device)
    summed = [z3.Exists([d], z3.And(part(d, what), home(d) == holder)) for holder in (one, other)]
    yield lemma_of(
        "completion",
        "no product is in the sums of two homes",
        (in_one_part,),
        z3.Implies(z3.And(summed), one == other),
    )


# Alignment


def _starts(member: Member) -> Term:
    return member.has("starts with")(member.device(), member.block())


def _ends(member: Member, tag: str = "") -> Term:
    return member.has("ends with")(member.device(tag), member.block())


def _stays() -> Lemma:
    """Between phases, where nothing moves in either member: for sums this is all there is."""
    given = [
        every([member.device(), member.block()], _starts(member), _ends(member))
        for member in MEMBERS
    ]
    starts, ends = (z3.And([has(member) for member in MEMBERS]) for has in (_starts, _ends))
    sentence = "a phase starts with what the one before it ended with"
    return lemma_of("alignment", sentence, tuple(given), z3.Implies(starts, ends))


def _ends_on_some() -> Lemma:
    """Between phases, where something moves: from whoever has it."""
    given, starts, ends = [], [], []
    for member in MEMBERS:
        starts.append(_starts(member))
        ends.append(_ends(member, "'"))
        some = z3.Exists([member.device("'")], ends[-1])
        given.append(every([member.device(), member.block()], starts[-1], some))
    exists = z3.Exists([member.device("'") for member in MEMBERS], z3.And(ends))
    sentence = "what a phase starts with, some device had at the end of the one before"
    return lemma_of("alignment", sentence, tuple(given), z3.Implies(z3.And(starts), exists))


# Deadlock-freedom


def _ranks() -> Iterator[Lemma]:
    """The order that every single primitive has too, of any number of steps."""
    steps, t, later = z3.Ints("steps t t'")
    right = []
    for place in range(len(PHASES)):
        length = 4 * steps + 2
        opening = place * length
        post = opening + 2 + 4 * t
        ranks = [opening, opening + 1, post, post + 1, post + 2, post + 3]
        right += [one < other for one, other in pairwise(ranks)]
        right += [post + 3 < post + 4 * (later - t), post + 3 < opening + length]
    within = (t >= 0, t < later, later < steps)
    sentence = "every device posts, waits and finishes sums in growing rank"
    yield lemma_of("deadlock-freedom", sentence, within, z3.And(right))
    one, other = ([*z3.Ints(f"m{tag} n{tag} k{tag}")] for tag in ("", "'"))
    differ = z3.Or([a != b for a, b in zip(one, other, strict=True)])
    sentence = "of two sums that a step finishes, all devices finish the same one first"
    then = precedes(one, other) != precedes(other, one)
    yield lemma_of("deadlock-freedom", sentence, (differ,), then)


def precedes(one: list[Term], other: list[Term]) -> Term:
    """Whether digits come first, compared from the major one on."""
    if not one:
        return z3.BoolVal(False)
    rest = precedes(one[1:], other[1:])
    return z3.Or(one[0] < other[0], z3.And(one[0] == other[0], rest))


# Races


def _in_flight() -> Iterator[Lemma]:
    """What is in flight during a step, by the rules by which all movement is derived."""
    device, block = z3.DeclareSort("device"), z3.DeclareSort("block")
    arrives, held = (
        z3.Function(name, device, block, BOOL) for name in ("arrives at", "is held by")
    )
    d, e = z3.Consts("d e", device)
    one, other = z3.Consts("one other", block)
    yield lemma_of(
        "races",
        "what arrives during a step has a buffer that is not in use",
        (every([d, one], arrives(d, one), z3.Not(held(d, one))),),
        z3.Implies(z3.And(arrives(d, one), held(d, other)), one != other),
    )
    part, adds = (z3.Function(name, device, BOOL) for name in ("has a part", "adds"))
    takes, source = z3.Function("takes", device, BOOL), z3.Function("source", device, device)
    joins = z3.And(adds(d), z3.Not(part(d)))
    leaves = z3.And(part(source(d)), z3.Not(adds(source(d))))
    yield lemma_of(
        "races",
        "a part of a sum that is sent is not added to, and arrives where there is none",
        (every([d], takes(d), joins), every([d], takes(d), leaves)),
        z3.Implies(takes(e), z3.And(z3.Not(adds(source(e))), z3.Not(part(e)), source(e) != e)),
    )
