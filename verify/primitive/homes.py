"""What a primitive with homes owes: the claims that take the place of those of `claims`.

Each is about any one block: of any tensor at rest, of an operand that a device needs, or of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from primepar.schedule.operators import PRODUCTS
from primepar.schedule.sequence import HOMES
from primepar.verify.primitive import terms
from primepar.verify.primitive.claims import coverage, none_nearer, one_to_one
from primepar.verify.primitive.fit import Sample
from primepar.verify.primitive.fit_sender import FitError, Sender
from primepar.verify.primitive.locate import (
    Either,
    HomeSample,
    Locator,
    Rule,
    RuleSpan,
    fit_opening,
    fit_rules,
)
from primepar.verify.primitive.moved import Moved, home_samples, located
from primepar.verify.primitive.order import Alternatives, Claim, order
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import SymbolicMap, overlaps


def home_claims(symbolic: SymbolicMap, seen: list[Sample]) -> Iterator[Claim | Alternatives]:
    """All claims of a primitive with homes, property by property."""
    yield from coverage(symbolic)
    rests = located(symbolic, seen)
    for tensor in HOMES:
        yield from _rests(symbolic, tensor, rests[tensor])
    samples = home_samples(symbolic, seen)
    for phase, made in PRODUCTS.items():
        for tensor in (*made.reads, made.writes):
            moved = Moved(symbolic, phase, tensor, rests[tensor.removeprefix("d")])
            yield from _moved(moved, samples)
    yield order(symbolic)


def _rests(symbolic: SymbolicMap, tensor: str, locator: Locator | FitError) -> Iterator[Claim]:
    """Every block rests somewhere; gradients start and end there too."""
    name, here = f"home of {tensor}", symbolic.here
    inside = symbolic.in_mesh(here)
    yield Claim("alignment", f"{name}: there is a device", inside, is_sanity=True)
    outside = terms.Not(symbolic.in_grid(symbolic.home(tensor, here)))
    sentence = f"{name}: every slice index is in its grid"
    yield Claim("alignment", sentence, terms.And(inside, outside), is_ground=True)
    sentence = f"{name}: every block rests on some device"
    if isinstance(locator, FitError):
        yield Claim("alignment", sentence, None, str(locator))
        return
    block = symbolic.any_block(tensor)
    found = symbolic.located(locator, here, block)
    lies = terms.And(symbolic.in_mesh(found), overlaps(symbolic.home(tensor, found), block))
    any_block = terms.And(inside, symbolic.in_grid(block))
    yield Claim("alignment", sentence, terms.And(any_block, terms.Not(lies)))
    if locator.replica_axes is not None:
        sentence = f"{name}: every block rests on {_count(symbolic, locator.replica_axes)}"
        rests = terms.And(any_block, overlaps(symbolic.home(tensor, here), block))
        another = terms.Or(*(a != b for a, b in zip(here, found, strict=True)))
        yield Claim("alignment", sentence, terms.And(rests, another))


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
    if moved.is_sum:
        # A part of a sum hops to a device that goes on with it, or rests: either way it comes home.
        yield from _returns(moved, locator)
    else:
        yield from _opening(moved, locator, samples)
    start = moved.symbolic.space.number(0)

    def enough() -> Iterator[Claim | Alternatives]:
        if not moved.is_sum:
            yield from _steps(moved, (RuleSpan(start, Either(locator)),))

    try:
        exact = list(_steps(moved, fit_rules(samples, moved.phase, moved.tensor)))
    except FitError:
        yield from enough()
    else:
        yield Alternatives(tuple(exact), enough)


def _opening(
    moved: Moved, locator: Locator, samples: list[HomeSample]
) -> Iterator[Claim | Alternatives]:
    """How step 0 gets an operand: by one rule, or from a peer or its home."""
    text = f"{moved.name}, before t = 0"

    def enough() -> Iterator[Claim | Alternatives]:
        return _operand(moved, Either(locator), None, moved.any_one, text)

    try:
        rule = fit_opening(samples, moved.phase, moved.tensor)
    except FitError:
        yield from enough()
    else:
        exact = _operand(moved, rule, None, moved.any_one, text)
        yield Alternatives(tuple(exact), enough)


def _steps(moved: Moved, spans: tuple[RuleSpan, ...]) -> Iterator[Claim | Alternatives]:
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
    uncovered = terms.And(now >= 0, now < symbolic.steps.term - 1, *early)
    return Claim(moved.proves, f"{moved.name}: the rules leave out no step", uncovered)


def _operand(
    moved: Moved, rule: Rule, now: Term | None, during: Term, text: str
) -> Iterator[Claim | Alternatives]:
    """What a device needs next is here, or comes from one peer, or from home."""
    symbolic = moved.symbolic
    wants = terms.And(during, moved.missing(symbolic.here, now))
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
) -> Iterator[Claim | Alternatives]:
    symbolic = moved.symbolic
    source, name = symbolic.sender(symbolic.here, sender), symbolic.sender_text(sender)
    sentence = f"{text}: what a device needs next and has not, {name} has"
    yield Claim("placement", sentence, terms.And(wants, terms.Not(moved.offers(source, now))))
    sentence = f"{text}: no device nearer than {name} has it"
    claim = Claim("placement", sentence, wants)
    yield none_nearer(symbolic, sender, claim, lambda device: moved.offers(device, now))
    yield one_to_one(symbolic, sender, "deadlock-freedom", text)


def _from_home(moved: Moved, locator: Locator, wants: Term, text: str) -> Iterator[Claim]:
    home, name = _at_home(moved, locator)
    sentence = f"{text}: what a device needs next and has not rests on {name}"
    yield Claim("placement", sentence, terms.And(wants, terms.Not(home)))
    yield from _no_nearer_home(moved, locator, "placement", text, wants)


def _only_from_home(
    moved: Moved, locator: Locator, now: Term | None, wants: Term, text: str
) -> Iterator[Claim]:
    symbolic, other = moved.symbolic, moved.symbolic.point("'")
    name = symbolic.locator_text(locator, moved.tensor)
    offered = terms.And(symbolic.in_mesh(other), moved.offers(other, now))
    sentence = f"{text}: no device has it away from home"
    yield Claim("placement", sentence, terms.And(wants, offered))
    found = symbolic.located(locator, symbolic.here, symbolic.any_block(moved.tensor))
    sentence = f"{text}: {name}, which sends a block, does not want it itself"
    asks = terms.And(wants, symbolic.in_mesh(found), moved.missing(found, now))
    yield Claim("deadlock-freedom", sentence, asks)


def _at_home(moved: Moved, locator: Locator) -> tuple[Term, str]:
    """That the located device is a home of the block; its name."""
    symbolic = moved.symbolic
    found = symbolic.located(locator, symbolic.here, symbolic.any_block(moved.tensor))
    is_home = terms.And(symbolic.in_mesh(found), moved.at_home(found))
    return is_home, symbolic.locator_text(locator, moved.tensor)


def _no_nearer_home(
    moved: Moved, locator: Locator, proves: str, text: str, wanted: Term
) -> Iterator[Claim]:
    """No other home is nearer; nothing to ask where a block rests on one device, as is claimed."""
    if locator.replica_axes == ():
        return
    symbolic, here, other = moved.symbolic, moved.symbolic.here, moved.symbolic.point("'")
    found = symbolic.located(locator, here, symbolic.any_block(moved.tensor))
    nearer = symbolic.is_nearer(other, found, here)
    home = terms.And(symbolic.in_mesh(other), moved.at_home(other))
    sentence = (
        f"{text}: no home of it is nearer than {symbolic.locator_text(locator, moved.tensor)}"
    )
    yield Claim(proves, sentence, terms.And(wanted, home, nearer))


def _sum(
    moved: Moved, rule: Rule, now: Term, during: Term, text: str
) -> Iterator[Claim | Alternatives]:
    """Sums are passed on by all that leave them, to all that add to them next."""
    symbolic, here = moved.symbolic, moved.symbolic.here
    yield Claim("completion", f"{text}: there is such a device and step", during, is_sanity=True)
    if not isinstance(rule, Sender):
        left = terms.And(during, moved.leaves(here, now))
        yield Claim("completion", f"{text}: a device leaves a sum at its home only", left)
        return
    source, name = symbolic.sender(here, rule), symbolic.sender_text(rule)
    joins = terms.And(during, moved.arrives(here, now))
    sentence = f"{text}: the sum that a device adds to next comes from {name}"
    yield Claim("completion", sentence, terms.And(joins, terms.Not(moved.leaves(source, now))))
    sentence = f"{text}: no device nearer than {name} leaves it"
    claim = Claim("completion", sentence, joins)
    yield none_nearer(symbolic, rule, claim, lambda device: moved.leaves(device, now))
    sentence = f"{text}: the sum that {name} leaves is passed on"
    lost = terms.And(moved.leaves(source, now), terms.Not(moved.arrives(here, now)))
    yield Claim("completion", sentence, terms.And(during, lost))
    before = terms.Int("t before")
    holds = terms.And(before >= 0, before < now, moved.at_home(here), moved.works(here, before))
    sentence = f"{text}: no sum comes to a home that holds one"
    yield Claim("completion", sentence, terms.And(joins, holds))
    for proves in ("completion", "deadlock-freedom"):
        yield one_to_one(symbolic, rule, proves, text)


def _rests_until_done(moved: Moved) -> Claim:
    """No sum is passed on: each is where its products are, until it is finished."""
    symbolic, here, other = moved.symbolic, moved.symbolic.here, moved.symbolic.point("'")
    now, before = symbolic.now, terms.Int("t before")
    at_step = terms.And(before >= 0, before <= now, now < symbolic.steps.term - 1)
    has_left = terms.And(
        symbolic.in_mesh(other),
        moved.works(other, before),
        terms.Not(terms.Or(moved.works(other, now + 1), moved.at_home(other))),
    )
    begins = terms.And(moved.works(here, now + 1), terms.Not(moved.works(here, before)))
    sentence = f"{moved.name}: what one device leaves is never the next of another"
    return Claim("completion", sentence, terms.And(moved.any_one, at_step, has_left, begins))


def _returns(moved: Moved, locator: Locator) -> Iterator[Claim]:
    """Whoever holds a part of a sum in the end sends it to one home, the nearest."""
    symbolic, now = moved.symbolic, moved.symbolic.now
    home, name = _at_home(moved, locator)
    at_step = terms.And(now >= 0, now < symbolic.steps.term)
    adds = terms.And(moved.any_one, at_step, moved.works(symbolic.here, now))
    yield Claim("completion", f"{moved.name}: there is a product", adds, is_sanity=True)
    sentence = f"{moved.name}: every sum that a device adds to is at home on {name}"
    yield Claim("completion", sentence, terms.And(adds, terms.Not(home)))
    yield from _no_nearer_home(moved, locator, "completion", moved.name, adds)
