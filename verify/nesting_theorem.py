"""The nesting theorem: what is right of both members of a sequence is right of their nesting.

It is ours, and asked of Z3 once for any two members: of a member nothing is known but what its own
proof says. A nested device is a pair of devices, a nested step a pair of steps of which the inner
one is fast, and a nested block a pair of blocks; of three members the third is nested in the first
two. What is given beyond the proofs of the members, `nesting_conditions` asks of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import z3

from primepar.verify.primitive_order import growing_ranks
from primepar.verify.primitive_symbolic import precedes
from primepar.verify.symbol import Term

_BOOL, _INT = z3.BoolSort(), z3.IntSort()


@dataclass(frozen=True, eq=False)
class Lemma:
    """What holds of a nesting if all that is `given` holds of its members."""

    property: str
    sentence: str
    given: tuple[Term, ...]
    then: Term


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
        return z3.Function(f"works {self.name}", self._devices, _INT, self._blocks, _BOOL)

    def has(self, name: str) -> z3.FuncDeclRef:
        """A relation of devices and blocks."""
        return z3.Function(f"{name} {self.name}", self._devices, self._blocks, _BOOL)

    @cached_property
    def nearest(self) -> z3.FuncDeclRef:
        """The nearest device that ends a phase with what another one needs for the next."""
        return z3.Function(f"nearest {self.name}", self._devices, self._blocks, self._devices)

    @cached_property
    def source(self) -> z3.FuncDeclRef:
        """The device that sends to another one."""
        return z3.Function(f"source {self.name}", self._devices, self._devices)

    @cached_property
    def target(self) -> z3.FuncDeclRef:
        """The one device that another one sends to."""
        return z3.Function(f"target {self.name}", self._devices, self._devices)


OUTER, INNER = Member("the outer member"), Member("the inner member")
MEMBERS = (OUTER, INNER)


def lemmas() -> Iterator[Lemma]:
    """All lemmas of the theorem, property by property."""
    yield from _indices()
    yield _once()
    yield _each()
    yield _brought()
    yield _rests("placement", "what a step needs rests on some device")
    yield from _sums()
    yield _rests("alignment", "every block rests on some device")
    yield _stays()
    yield _nearest()
    yield _one_moves()
    yield from _all_move()
    yield _ranks()


def _every(variables: list[Term], given: Term, then: Term) -> Term:
    return z3.ForAll(variables, z3.Implies(given, then))


# Coverage


def _indices() -> Iterator[Lemma]:
    """A pair of digits is one index: of a slice, of a device and of a step."""
    outer, inner, other, another, count, radix = z3.Ints("o i o' i' count radix")
    digits = (inner >= 0, inner < radix, another >= 0, another < radix)
    flat = outer * radix + inner
    yield Lemma(
        "coverage",
        "no two pairs of digits make the same index",
        (*digits, flat == other * radix + another),
        z3.And(outer == other, inner == another),
    )
    yield Lemma(
        "coverage",
        "there are as many indices as pairs of digits",
        (outer >= 0, outer < count, *digits[:2]),
        z3.And(flat >= 0, flat < count * radix),
    )
    next_inner = z3.And(other == outer, another == inner + 1)
    next_outer = z3.And(other == outer + 1, another == 0)
    yield Lemma(
        "coverage",
        "after a step comes the next inner one, after the last of these the next outer one",
        (*digits, other * radix + another == flat + 1),
        z3.If(inner + 1 < radix, next_inner, next_outer),
    )


def _once() -> Lemma:
    given, both, alike = [], [], []
    for each in MEMBERS:
        one, other, t, then, what = (
            each.device(), each.device("'"), each.step(), each.step("'"), each.block()
        )  # fmt: skip
        twice = z3.And(each.works(one, t, what), each.works(other, then, what))
        same = z3.And(one == other, t == then)
        given.append(_every([one, other, t, then, what], twice, same))
        both.append(twice)
        alike.append(same)
    sentence = "no sub-operator is computed at two places or steps"
    return Lemma("coverage", sentence, tuple(given), z3.Implies(z3.And(both), z3.And(alike)))


def _each() -> Lemma:
    given, done, at = [], [], []
    for each in MEMBERS:
        device, t, what = each.device(), each.step(), each.block()
        done.append(each.works(device, t, what))
        given.append(z3.ForAll([what], z3.Exists([device, t], done[-1])))
        at += [device, t]
    sentence = "every sub-operator is computed at some place and step"
    return Lemma("coverage", sentence, tuple(given), z3.Exists(at, z3.And(done)))


# Placement


def _held(each: Member, step: Term, before: Term) -> tuple[Term, Term]:
    """A device needs a block at a step; some device had it at another step."""
    need, has = each.works(each.device(), step, each.block()), each.works(
        each.device("'"), before, each.block()
    )  # fmt: skip
    return need, has


def _goes_on(each: Member) -> Term:
    """What a step needs, some device had at the step before."""
    t = each.step("?")
    need, has = _held(each, t + 1, t)
    within = z3.And(t >= 0, t + 1 < each.steps, need)
    return _every([each.device(), each.block(), t], within, z3.Exists([each.device("'")], has))


def _turns(each: Member) -> Term:
    """What the first step needs, some device had at the last."""
    need, has = _held(each, z3.IntVal(0), each.steps - 1)
    return _every([each.device(), each.block()], need, z3.Exists([each.device("'")], has))


def _brought() -> Lemma:
    """Without homes; the inner member begins again where the outer one goes on."""
    carries = INNER.step() + 1 == INNER.steps
    later = (z3.If(carries, OUTER.step() + 1, OUTER.step()),
             z3.If(carries, 0, INNER.step() + 1))  # fmt: skip
    within = [z3.And(each.step() >= 0, each.step() < each.steps, then < each.steps)
              for each, then in zip(MEMBERS, later, strict=True)]  # fmt: skip
    pairs = [_held(each, then, each.step()) for each, then in zip(MEMBERS, later, strict=True)]
    has = z3.Exists([each.device("'") for each in MEMBERS], z3.And([has for _, has in pairs]))
    need = z3.And([*within, *(need for need, _ in pairs)])
    turns = z3.Implies(OUTER.steps > 1, _turns(INNER))
    return Lemma(
        "placement",
        "what a step needs, some device had at the step before",
        (_goes_on(OUTER), _goes_on(INNER), turns),
        z3.Implies(need, has),
    )


def _rests(name: str, sentence: str) -> Lemma:
    """With homes."""
    given, rests = [], []
    for each in MEMBERS:
        rests.append(each.has("home of")(each.device(), each.block()))
        given.append(z3.ForAll([each.block()], z3.Exists([each.device()], rests[-1])))
    homes = z3.Exists([each.device() for each in MEMBERS], z3.And(rests))
    return Lemma(name, sentence, tuple(given), homes)


# Completion


def _sums() -> Iterator[Lemma]:
    """One sum over a step: parts hop and join others, then new products are added.

    It is the step of an induction, of any movement in which no two devices take one part.
    """
    device, product = z3.DeclareSort("device"), z3.DeclareSort("product")
    part, new = (z3.Function(name, device, product, _BOOL) for name in ("in the part of", "new on"))
    takes, source = z3.Function("takes", device, _BOOL), z3.Function("source", device, device)
    d, e, one, other = z3.Consts("d e one other", device)
    p, what = z3.Consts("p what", product)

    def after(at: Term, has: Term) -> Term:
        left = z3.Exists([d], z3.And(takes(d), source(d) == at))
        came = z3.And(takes(at), part(source(at), has))
        return z3.Or(z3.And(part(at, has), z3.Not(left)), came, new(at, has))

    in_one_part = _every([d, e, p], z3.And(part(d, p), part(e, p)), d == e)
    computed_once = _every([d, e, p], z3.And(new(d, p), z3.Or(new(e, p), part(e, p))),
                           z3.And(d == e, z3.Not(part(e, p))))  # fmt: skip
    one_taker = _every([d, e], z3.And(takes(d), takes(e), source(d) == source(e)), d == e)
    yield Lemma(
        "completion",
        "no product is in the parts of two devices after a step",
        (in_one_part, computed_once, one_taker),
        z3.Implies(z3.And(after(one, what), after(other, what)), one == other),
    )
    yield Lemma(
        "completion",
        "every product is in the part of some device after a step",
        (z3.Or(part(one, what), new(one, what)),),
        z3.Exists([e], after(e, what)),
    )
    home = z3.Function("sends its part to", device, device)
    summed = [z3.Exists([d], z3.And(part(d, what), home(d) == at)) for at in (one, other)]
    yield Lemma(
        "completion",
        "no product is in the sums of two homes",
        (in_one_part,),
        z3.Implies(z3.And(summed), one == other),
    )


# Alignment


def _starts(each: Member, tag: str = "") -> Term:
    return each.has("starts with")(each.device(tag), each.block(tag))


def _ends(each: Member, tag: str = "") -> Term:
    return each.has("ends with")(each.device(tag), each.block(tag))


def _finds(each: Member, tag: str = "") -> Term:
    return each.nearest(each.device(tag), each.block(tag))


def _stays() -> Lemma:
    """Between phases, where nothing moves in either member: for sums this is all there is."""
    given = [_every([each.device(), each.block()], _starts(each), _ends(each)) for each in MEMBERS]
    starts, ends = (z3.And([has(each) for each in MEMBERS]) for has in (_starts, _ends))
    sentence = "a phase starts with what the one before it ended with"
    return Lemma("alignment", sentence, tuple(given), z3.Implies(starts, ends))


def _nearest() -> Lemma:
    """Nearest: fewest axes away, then the shortest way round, then in one direction."""
    far = [
        [[z3.Int(f"{name}{tag} of {each.name}") for name in ("axes", "way", "turn")]
         for tag in ("", "'")]
        for each in MEMBERS
    ]  # fmt: skip
    given = [precedes(one, other) for one, other in far]
    pair, other_pair = (
        [outer[0] + inner[0], outer[1] + inner[1], outer[2], inner[2]]
        for outer, inner in zip(*far, strict=True)
    )
    same = [z3.And([a == b for a, b in zip(one, other, strict=True)]) for one, other in far]
    given = [z3.Or(*each) for each in zip(given, same, strict=True)]
    return Lemma(
        "alignment",
        "of pairs of devices that of the nearest is the nearest",
        tuple(given),
        z3.Or(precedes(pair, other_pair), z3.And(same)),
    )


def _one_moves() -> Lemma:
    """Between phases, where something moves in one member only."""
    tags = ("", "'")
    stays, moves = MEMBERS
    here = z3.And(_ends(stays), _finds(stays) == stays.device())
    lacks = [z3.And(_starts(moves, tag), z3.Not(_ends(moves, tag))) for tag in tags]
    every = [each(tag) for tag in tags for each in (moves.device, moves.block)]
    one_source = z3.Implies(
        moves.device() == moves.device("'"), _finds(moves) == _finds(moves, "'")
    )
    one_target = z3.Implies(
        _finds(moves) == _finds(moves, "'"), moves.device() == moves.device("'")
    )
    given = (
        _every([stays.device(), stays.block()], _starts(stays), here),
        _every(every, z3.And(lacks), one_source),
        _every(every, z3.And(lacks), one_target),
    )
    nested_lacks = z3.And([
        z3.And(*(_starts(each, tag) for each in MEMBERS),
               z3.Not(z3.And([_ends(each, tag) for each in MEMBERS])))
        for tag in tags
    ])  # fmt: skip
    same_device = z3.And([each.device() == each.device("'") for each in MEMBERS])
    same_source = z3.And([_finds(each) == _finds(each, "'") for each in MEMBERS])
    sentence = "all that a device lacks comes from one device, which sends to no other"
    return Lemma("alignment", sentence, given, z3.Implies(nested_lacks, same_device == same_source))


def _all_move() -> Iterator[Lemma]:
    """Between phases, where something moves in both members: all of it, and one to one."""
    whole, starts, found, alone, apart, same = [], [], [], [], [], []
    for each in MEMBERS:
        one, other = each.device(), each.device("'")
        starts.append(_starts(each))
        found.append(_finds(each) == each.source(one))
        whole.append(_every([one, each.block()], starts[-1], found[-1]))
        alone.append(z3.ForAll([one], each.target(each.source(one)) == one))
        apart.append(each.source(one) == each.source(other))
        same.append(one == other)
    sentence = "all that a device starts with comes from one device"
    then = z3.Implies(z3.And(starts), z3.And(found))
    yield Lemma("alignment", sentence, tuple(whole), then)
    then = z3.Implies(z3.And(apart), z3.And(same))
    yield Lemma("alignment", "no two devices have one source", tuple(alone), then)


# Deadlock-freedom


def _ranks() -> Lemma:
    """The order that every single primitive has too, of any number of steps."""
    steps = z3.Int("steps of both")
    sentence = "every device posts, waits and finishes sums in growing rank"
    return Lemma("deadlock-freedom", sentence, (), z3.Not(growing_ranks(steps, len(MEMBERS))))
