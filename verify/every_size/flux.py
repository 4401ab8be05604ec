"""Proves the ring orders of FLUX for every number of devices and chunks.

A device goes through its tiles in the order of (step, chunk). In a tile it posts transfers, one
out and one in, waits for those of an earlier tile of that chunk, and multiplies. Which device's
tile, from whom, to whom and when it is awaited are maps of the device and the step alone. So chunks
need no arithmetic: a block is a pair (owner, chunk), and two blocks are one if both are equal.

The lemmas, for every p >= 1, every device and every step below p (of transfers below p - 1):

    once        a device computes the tiles of different owners at different steps
    matched     the target of a device's source is the device, and the other way round
    channel     two devices exchange messages in one direction at one step only
    no-self     no device sends to itself or receives from itself
    signal      a transfer is posted, at both ends, before it is awaited
    ends        every transfer is awaited at one of the steps
    own         all-gather: the own tile is the first; reduce-scatter: it is the last
    arrives     all-gather: what a device receives at step k it multiplies at step k + 1, after its
                wait
    departs     reduce-scatter: what a device sends at step k is the tile of that step, computed
                before
    summed      reduce-scatter: a device receives from every other device once
    again       reduce-scatter: it has received a part before it posts the next into that buffer

Why they are enough: there are p steps and p owners, so by `once` every tile is computed exactly
once. By `channel` the messages of a channel are those of one step, which both ends post in order
of the chunk; so the j-th send meets the j-th receive. Let the time of an instruction be (step,
chunk, position in the tile). By `matched` both ends of a transfer have the same time except for
the position, and by `signal` it is smaller than that of the wait. So whatever an instruction waits
for has a smaller time, and there is no cycle. By `ends` no wait is missing. A block in flight is
used by no instruction before its wait, by `once`, `own`, `arrives` and `again`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import z3

from primepar.partition import flux_gather, flux_scatter
from primepar.verify.deadline import UnansweredError
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_question import smallest_model
from primepar.verify.primitive.z3_symbols import Symbol, SymbolSpace, Term, truth
from primepar.verify.report import PropertyResult

Order = Callable[[Any, Any, Any], Any]
"""From a device, a step and the number of devices to a device."""
NAMES = ("r", "k", "k'")
"""A device and two steps."""
NOTE = "for every number of devices and chunks"


@dataclass(frozen=True)
class RingOrder:
    """Whose tile a device computes at a step, from whom it receives and to whom it sends then.

    `post`, `wait` and `product` are the positions of the three in a tile.
    """

    tile: Order
    source: Order
    target: Order
    gathers: bool
    """Whether what is received is read at the next step; else what was computed is sent."""
    post: int
    wait: int
    product: int
    awaited: Callable[[Any], Any] = lambda step: step + 1
    """The step at which the transfers that were posted at a step are awaited."""


GATHER = RingOrder(
    flux_gather.owner_at,
    lambda rank, step, devices: flux_gather.owner_at(rank, step + 1, devices),
    flux_gather.target_at,
    gathers=True,
    post=0,
    wait=1,
    product=2,
)
SCATTER = RingOrder(
    flux_scatter.owner_at,
    flux_scatter.source_at,
    flux_scatter.owner_at,
    gathers=False,
    product=0,
    wait=1,
    post=2,
)


@dataclass(frozen=True)
class _Lemma:
    name: str
    properties: tuple[str, ...]
    given: Term
    holds: Term


def prove_gather(seconds: float) -> Iterator[PropertyResult]:
    """Prove `flux-gather` for every size."""
    return prove_order(GATHER, seconds)


def prove_scatter(seconds: float) -> Iterator[PropertyResult]:
    """Prove `flux-scatter` for every size."""
    return prove_order(SCATTER, seconds)


def prove_order(order: RingOrder, seconds: float) -> Iterator[PropertyResult]:
    """Prove the lemmas of an order, and yield the properties that rest on them.

    A lemma that fails refutes its properties, with the smallest number of devices as the
    counterexample.
    """
    end, space = perf_counter() + seconds, SymbolSpace(("p",))
    lemmas = list(_lemmas(order, space))
    answers = {lemma.name: _asked(lemma, space, end) for lemma in lemmas}
    for name in ("coverage", "placement", "completion", "deadlock-freedom", "races"):
        needed = [lemma.name for lemma in lemmas if name in lemma.properties]
        took = sum(answers[lemma].seconds for lemma in needed)
        wrong = next((answers[lemma] for lemma in needed if not answers[lemma].holds), None)
        if wrong is None:
            yield PropertyResult(name, "proved", took, reason=f"{NOTE}: {', '.join(needed)}")
        elif wrong.place is None:
            yield PropertyResult(name, "unknown", took, reason=wrong.text)
        else:
            yield PropertyResult(name, "refuted", took, counterexample=wrong.text)


def _lemmas(order: RingOrder, space: SymbolSpace) -> Iterator[_Lemma]:
    (devices,) = space.sides
    rank, step, other_step = map(_symbol(space), NAMES)
    last = devices - 1
    tile, source, target = (
        _with_devices(space, map_of) for map_of in (order.tile, order.source, order.target)
    )
    moves, both = step < last, terms.And(truth(step < last), truth(other_step < last))
    yield _Lemma(
        "once",
        ("coverage", "races"),
        truth(tile(rank, step) == tile(rank, other_step)),
        truth(step == other_step),
    )
    yield _Lemma(
        "matched",
        ("placement", "completion", "deadlock-freedom"),
        truth(moves),
        terms.And(
            truth(target(source(rank, step), step) == rank),
            truth(source(target(rank, step), step) == rank),
        ),
    )
    yield _Lemma(
        "channel",
        ("deadlock-freedom",),
        terms.And(both, truth(target(rank, step) == target(rank, other_step))),
        truth(step == other_step),
    )
    yield _Lemma(
        "no-self",
        ("deadlock-freedom", "races"),
        truth(moves),
        terms.And(truth(target(rank, step) != rank), truth(source(rank, step) != rank)),
    )
    yield _Lemma(
        "signal",
        ("placement", "deadlock-freedom"),
        truth(moves),
        _before((step, order.post), (order.awaited(step), order.wait)),
    )
    yield _Lemma(
        "ends", ("deadlock-freedom", "races"), truth(moves), truth(order.awaited(step) <= last)
    )
    if order.gathers:
        yield from _gathered(order, rank, step, tile, source, moves)
    else:
        yield from _scattered(order, rank, (step, other_step), (tile, source, target), last)


def _gathered(
    order: RingOrder, rank: Symbol, step: Symbol, tile: Any, source: Any, moves: Any
) -> Iterator[_Lemma]:
    is_own = truth(tile(rank, step) == rank)
    first = truth(step == 0)
    yield _Lemma("own", ("placement", "races"), terms.TRUE, terms.equal(is_own, first))
    waits = _before((order.awaited(step), order.wait), (step + 1, order.product))
    arrives = terms.And(truth(source(rank, step) == tile(rank, step + 1)), waits)
    yield _Lemma("arrives", ("placement", "completion", "races"), truth(moves), arrives)


def _scattered(
    order: RingOrder,
    rank: Symbol,
    steps: tuple[Symbol, Symbol],
    maps: tuple[Any, Any, Any],
    last: Symbol,
) -> Iterator[_Lemma]:
    (step, other_step), (tile, source, target) = steps, maps
    is_own, ends = truth(tile(rank, step) == rank), truth(step == last)
    yield _Lemma("own", ("completion", "races"), terms.TRUE, terms.equal(is_own, ends))
    computed = _before((step, order.product), (step, order.post))
    departs = terms.And(truth(target(rank, step) == tile(rank, step)), computed)
    yield _Lemma("departs", ("placement", "completion"), truth(step < last), departs)
    both = terms.And(truth(step < last), truth(other_step < last))
    repeats = truth(source(rank, step) == source(rank, other_step))
    same = truth(step == other_step)
    yield _Lemma("summed", ("completion",), terms.And(both, repeats), same)
    reused = _before((order.awaited(step), order.wait), (step + 1, order.post))
    yield _Lemma("again", ("races",), truth(step < last), reused)


def _with_devices(space: SymbolSpace, order: Order) -> Callable[[Symbol, Symbol], Symbol]:
    """Return an order as a function of device and step."""
    (devices,) = space.sides
    return lambda rank, step: space.of(order(rank, step, devices))


def _before(first: tuple[Symbol, int], second: tuple[Symbol, int]) -> Term:
    """Whether a (step, position) comes before another one, in tiles of the same chunk."""
    (step, position), (later_step, later_position) = first, second
    same = terms.And(truth(step == later_step), truth(position < later_position))
    return terms.Or(truth(step < later_step), same)


def _symbol(space: SymbolSpace) -> Callable[[str], Symbol]:
    """Return how to make the symbol of a name, from 0 to the number of devices."""
    return lambda name: space.below(terms.Int(name), space.side("p"))


@dataclass(frozen=True)
class _Answer:
    holds: bool
    seconds: float
    text: str = ""
    place: str | None = None


def _asked(lemma: _Lemma, space: SymbolSpace, end: float) -> _Answer:
    """Ask Z3 for devices, a rank and steps at which a lemma fails."""
    start, solver = perf_counter(), z3.Solver()
    (devices,) = space.sides
    solver.add(devices.term >= 1)
    for name in NAMES:
        solver.add(terms.Int(name) >= 0, terms.Int(name) < devices.term)
    solver.add(lemma.given, terms.Not(lemma.holds))
    try:
        model = smallest_model(solver, space, end)
    except UnansweredError as error:
        return _Answer(False, perf_counter() - start, f"{lemma.name}: {error}")
    took = perf_counter() - start
    if model is None:
        return _Answer(True, took)
    numbers = {
        name: model.eval(term, model_completion=True).as_long()
        for name, term in (("p", devices.term), *((name, terms.Int(name)) for name in NAMES))
    }
    place = ", ".join(f"{name}={number}" for name, number in numbers.items())
    return _Answer(
        False, took, f"expected {lemma.name!r}, got an order without it at {place}", place
    )
