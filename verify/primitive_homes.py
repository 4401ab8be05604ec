"""What a primitive with homes owes: the claims that take the place of those of `primitive_claims`.

Each is about any one block: of any tensor at rest, of an operand that a device needs, or of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import z3

from primepar.schedule.operators import PRODUCTS
from primepar.schedule.sequence import HOMES
from primepar.verify.fit import FitError, Sample, Sender
from primepar.verify.primitive_claims import coverage, one_to_one
from primepar.verify.primitive_locate import (
    Either,
    HomeSample,
    Locator,
    Rule,
    RuleSpan,
    fit_locators,
    fit_opening,
    fit_rules,
)
from primepar.verify.primitive_moved import Moved
from primepar.verify.primitive_order import Alternatives, Claim, order
from primepar.verify.primitive_symbolic import SymbolicMap, overlaps
from primepar.verify.symbol import Term


def home_claims(symbolic: SymbolicMap, seen: list[Sample]) -> Iterator[Claim | Alternatives]:
    """All claims of a primitive with homes, property by property."""
    yield from coverage(symbolic)
    located = fit_locators(seen, symbolic.radices)
    known = {name: each for name, each in located.items() if isinstance(each, Locator)}
    for tensor in HOMES:
        yield from _rests(symbolic, tensor, located[tensor])
    samples = [HomeSample(sample, known) for sample in seen]
    for phase, made in PRODUCTS.items():
        for tensor in (*made.reads, made.writes):
            moved = Moved(symbolic, phase, tensor, located[tensor.removeprefix("d")])
            yield from _moved(moved, samples)
    yield order(symbolic)


def _rests(symbolic: SymbolicMap, tensor: str, locator: Locator | FitError) -> Iterator[Claim]:
    """Every block rests somewhere; gradients start and end there too."""
    name, here = f"home of {tensor}", symbolic.here
    inside = symbolic.in_mesh(here)
    yield Claim("alignment", f"{name}: there is a device", inside, is_sanity=True)
    outside = z3.Not(symbolic.in_grid(symbolic.home(tensor, here)))
    sentence = f"{name}: every slice index is in its grid"
    yield Claim("alignment", sentence, z3.And(inside, outside), is_ground=True)
    sentence = f"{name}: every block rests on some device"
    if isinstance(locator, FitError):
        yield Claim("alignment", sentence, None, str(locator))
        return
    block = symbolic.any_block(tensor)
    found = symbolic.located(locator, here, block)
    lies = z3.And(symbolic.in_mesh(found), overlaps(symbolic.home(tensor, found), block))
    any_block = z3.And(inside, symbolic.in_grid(block))
    yield Claim("alignment", sentence, z3.And(any_block, z3.Not(lies)))
    if locator.replica_axes is not None:
        sentence = f"{name}: every block rests on {_count(symbolic, locator.replica_axes)}"
        rests = z3.And(any_block, overlaps(symbolic.home(tensor, here), block))
        another = z3.Or(*(a != b for a, b in zip(here, found, strict=True)))
        yield Claim("alignment", sentence, z3.And(rests, another))


def _count(symbolic: SymbolicMap, axes: tuple[int, ...]) -> str:
    sides = list(symbolic.primitive.axis_sides.values())
    number = " * ".join(sides[axis] for axis in axes)
    return f"{number} devices" if number else "one device"


def _moved(moved: Moved, samples: list[HomeSample]) -> Iterator[Claim | Alternatives]:
    locator = moved.locator
    if isinstance(locator, FitError):
        sentence = f"{moved.name}: one rule says where each block comes from"
        yield Claim(moved.proves, sentence, None, str(locator))
        sentence = f"{moved.name}: every receive has its send"
        yield Claim("deadlock-freedom", sentence, None, str(locator))
        return
    enough: list[Claim] = []
    if moved.is_sum:
        # A part of a sum hops to a device that goes on with it, or rests: either way it comes home.
        yield from _returns(moved, locator)
    else:
        yield from _opening(moved, locator, samples)
        enough = list(_steps(moved, (RuleSpan(moved.symbolic.space.number(0), Either(locator)),)))
    try:
        exact = list(_steps(moved, fit_rules(samples, moved.phase, moved.tensor)))
    except FitError:
        yield from enough
    else:
        yield Alternatives(tuple(exact), tuple(enough))


def _opening(
    moved: Moved, locator: Locator, samples: list[HomeSample]
) -> Iterator[Claim | Alternatives]:
    """How step 0 gets an operand: by one rule, or from a peer or its home."""
    text = f"{moved.name}, before t = 0"
    enough = _operand(moved, Either(locator), None, moved.any_one, text)
    try:
        rule = fit_opening(samples, moved.phase, moved.tensor)
    except FitError:
        yield from enough
    else:
        exact = _operand(moved, rule, None, moved.any_one, text)
        yield Alternatives(tuple(exact), tuple(enough))


def _steps(moved: Moved, spans: tuple[RuleSpan, ...]) -> Iterator[Claim]:
    """How every further step gets an operand, or passes on its sums."""
    yield _no_gap(moved, spans)
    if moved.is_sum and all(span.rule is None for span in spans):
        yield _rests_until_done(moved)
        return
    for place, span in enumerate(spans):
        during, text = moved.during(spans, place), moved.span_text(spans, place)
        step = _sum if moved.is_sum else _operand
        yield from step(moved, span.rule, moved.symbolic.now, during, text)


def _no_gap(moved: Moved, spans: tuple[RuleSpan, ...]) -> Claim:
    """The spans were seen on a few sides only: on another there may be steps before the first."""
    symbolic, now = moved.symbolic, moved.symbolic.now
    early = [now < symbolic.space.term(span.first) for span in spans]
    uncovered = z3.And(now >= 0, now < symbolic.steps.term - 1, *early)
    return Claim(moved.proves, f"{moved.name}: the rules leave out no step", uncovered)


def _operand(
    moved: Moved, rule: Rule, now: Term | None, during: Term, text: str
) -> Iterator[Claim]:
    """What a device needs next is here, or comes from one peer, or from home."""
    symbolic = moved.symbolic
    wants = z3.And(during, moved.missing(symbolic.here, now))
    if rule is None:
        yield Claim("placement", f"{text}: there is such a device and step", during, is_sanity=True)
        yield Claim("placement", f"{text}: every device has already what it needs next", wants)
        return
    yield Claim("placement", f"{text}: there is a device that needs a block", wants, is_sanity=True)
    if isinstance(rule, Sender):
        yield from _from_peer(moved, rule, now, wants, text)
    elif isinstance(rule, Locator):
        yield from _from_home(moved, rule, wants, text)
        yield from _only_from_home(moved, rule, now, wants, text)
    else:
        yield from _from_home(moved, rule.home, wants, text)


def _from_peer(
    moved: Moved, sender: Sender, now: Term | None, wants: Term, text: str
) -> Iterator[Claim]:
    symbolic, other = moved.symbolic, moved.symbolic.point("'")
    source, name = symbolic.sender(symbolic.here, sender), symbolic.sender_text(sender)
    sentence = f"{text}: what a device needs next and has not, {name} has"
    yield Claim("placement", sentence, z3.And(wants, z3.Not(moved.offers(source, now))))
    nearer = symbolic.is_nearer(other, source, symbolic.here)
    offered = z3.And(symbolic.in_mesh(other), moved.offers(other, now))
    sentence = f"{text}: no device nearer than {name} has it"
    yield Claim("placement", sentence, z3.And(wants, offered, nearer))
    yield one_to_one(symbolic, sender, "deadlock-freedom", text)


def _from_home(moved: Moved, locator: Locator, wants: Term, text: str) -> Iterator[Claim]:
    home, name, nearer = _nearest_home(moved, locator)
    sentence = f"{text}: what a device needs next and has not rests on {name}"
    yield Claim("placement", sentence, z3.And(wants, z3.Not(home)))
    yield Claim("placement", f"{text}: no home of it is nearer than {name}", z3.And(wants, nearer))


def _only_from_home(
    moved: Moved, locator: Locator, now: Term | None, wants: Term, text: str
) -> Iterator[Claim]:
    symbolic, other = moved.symbolic, moved.symbolic.point("'")
    name = symbolic.locator_text(locator, moved.tensor)
    offered = z3.And(symbolic.in_mesh(other), moved.offers(other, now))
    sentence = f"{text}: no device has it away from home"
    yield Claim("placement", sentence, z3.And(wants, offered))
    found = symbolic.located(locator, symbolic.here, symbolic.any_block(moved.tensor))
    sentence = f"{text}: {name}, which sends a block, does not want it itself"
    asks = z3.And(wants, symbolic.in_mesh(found), moved.missing(found, now))
    yield Claim("deadlock-freedom", sentence, asks)


def _nearest_home(moved: Moved, locator: Locator) -> tuple[Term, str, Term]:
    """That the located device is a home of the block; its name; that another home is nearer."""
    symbolic, here, other = moved.symbolic, moved.symbolic.here, moved.symbolic.point("'")
    found = symbolic.located(locator, here, symbolic.any_block(moved.tensor))
    nearer = z3.And(
        symbolic.in_mesh(other), moved.at_home(other), symbolic.is_nearer(other, found, here)
    )
    is_home = z3.And(symbolic.in_mesh(found), moved.at_home(found))
    return is_home, symbolic.locator_text(locator, moved.tensor), nearer


def _sum(moved: Moved, rule: Rule, now: Term, during: Term, text: str) -> Iterator[Claim]:
    """Sums are passed on by all that leave them, to all that add to them next."""
    symbolic, here, other = moved.symbolic, moved.symbolic.here, moved.symbolic.point("'")
    yield Claim("completion", f"{text}: there is such a device and step", during, is_sanity=True)
    if not isinstance(rule, Sender):
        left = z3.And(during, moved.leaves(here, now))
        yield Claim("completion", f"{text}: a device leaves a sum at its home only", left)
        return
    source, name = symbolic.sender(here, rule), symbolic.sender_text(rule)
    joins = z3.And(during, moved.arrives(here, now))
    sentence = f"{text}: the sum that a device adds to next comes from {name}"
    yield Claim("completion", sentence, z3.And(joins, z3.Not(moved.leaves(source, now))))
    sentence = f"{text}: no device nearer than {name} leaves it"
    nearer = z3.And(moved.leaves(other, now), symbolic.is_nearer(other, source, here))
    yield Claim("completion", sentence, z3.And(joins, symbolic.in_mesh(other), nearer))
    sentence = f"{text}: the sum that {name} leaves is passed on"
    lost = z3.And(moved.leaves(source, now), z3.Not(moved.arrives(here, now)))
    yield Claim("completion", sentence, z3.And(during, lost))
    before = z3.Int("t before")
    holds = z3.And(before >= 0, before < now, moved.at_home(here), moved.works(here, before))
    sentence = f"{text}: no sum comes to a home that holds one"
    yield Claim("completion", sentence, z3.And(joins, holds))
    for proves in ("completion", "deadlock-freedom"):
        yield one_to_one(symbolic, rule, proves, text)


def _rests_until_done(moved: Moved) -> Claim:
    """No sum is passed on: each is where its products are, until it is finished."""
    symbolic, here, other = moved.symbolic, moved.symbolic.here, moved.symbolic.point("'")
    now, before = symbolic.now, z3.Int("t before")
    at_step = z3.And(before >= 0, before <= now, now < symbolic.steps.term - 1)
    has_left = z3.And(
        symbolic.in_mesh(other),
        moved.works(other, before),
        z3.Not(z3.Or(moved.works(other, now + 1), moved.at_home(other))),
    )
    begins = z3.And(moved.works(here, now + 1), z3.Not(moved.works(here, before)))
    sentence = f"{moved.name}: what one device leaves is never the next of another"
    return Claim("completion", sentence, z3.And(moved.any_one, at_step, has_left, begins))


def _returns(moved: Moved, locator: Locator) -> Iterator[Claim]:
    """Whoever holds a part of a sum in the end sends it to one home, the nearest."""
    symbolic, now = moved.symbolic, moved.symbolic.now
    home, name, nearer = _nearest_home(moved, locator)
    at_step = z3.And(now >= 0, now < symbolic.steps.term)
    adds = z3.And(moved.any_one, at_step, moved.works(symbolic.here, now))
    yield Claim("completion", f"{moved.name}: there is a product", adds, is_sanity=True)
    sentence = f"{moved.name}: every sum that a device adds to is at home on {name}"
    yield Claim("completion", sentence, z3.And(adds, z3.Not(home)))
    sentence = f"{moved.name}: no home of it is nearer than {name}"
    yield Claim("completion", sentence, z3.And(adds, nearer))
