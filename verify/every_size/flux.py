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

from primepar.partition import flux
from primepar.verify.every_size.lemmas import MapLemma, before, prove_lemmas, symbol
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_symbols import Symbol, SymbolSpace, truth
from primepar.verify.report import PropertyResult

Order = Callable[[Any, Any, Any], Any]
"""From a device, a step and the number of devices to a device."""
NAMES = ("r", "k", "k'")
"""A device and two steps."""
PROPERTIES = ("coverage", "placement", "completion", "deadlock-freedom", "races")
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
    flux.gathered_from,
    lambda rank, step, devices: flux.gathered_from(rank, step + 1, devices),
    flux.opposite,
    gathers=True,
    post=0,
    wait=1,
    product=2,
)
SCATTER = RingOrder(
    flux.computed_for,
    flux.opposite,
    flux.computed_for,
    gathers=False,
    product=0,
    wait=1,
    post=2,
)


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
    yield from prove_lemmas(_lemmas(order, space), space, NAMES, PROPERTIES, NOTE, end)


def _lemmas(order: RingOrder, space: SymbolSpace) -> Iterator[MapLemma]:
    (devices,) = space.sides
    rank, step, other_step = (symbol(space, name) for name in NAMES)
    last = devices - 1
    tile, source, target = (
        _with_devices(space, map_of) for map_of in (order.tile, order.source, order.target)
    )
    moves, both = step < last, terms.And(truth(step < last), truth(other_step < last))
    yield MapLemma(
        "once",
        ("coverage", "races"),
        truth(tile(rank, step) == tile(rank, other_step)),
        truth(step == other_step),
    )
    yield MapLemma(
        "matched",
        ("placement", "completion", "deadlock-freedom"),
        truth(moves),
        terms.And(
            truth(target(source(rank, step), step) == rank),
            truth(source(target(rank, step), step) == rank),
        ),
    )
    yield MapLemma(
        "channel",
        ("deadlock-freedom",),
        terms.And(both, truth(target(rank, step) == target(rank, other_step))),
        truth(step == other_step),
    )
    yield MapLemma(
        "no-self",
        ("deadlock-freedom", "races"),
        truth(moves),
        terms.And(truth(target(rank, step) != rank), truth(source(rank, step) != rank)),
    )
    yield MapLemma(
        "signal",
        ("placement", "deadlock-freedom"),
        truth(moves),
        before((step, order.post), (order.awaited(step), order.wait)),
    )
    yield MapLemma(
        "ends", ("deadlock-freedom", "races"), truth(moves), truth(order.awaited(step) <= last)
    )
    if order.gathers:
        yield from _gathered(order, rank, step, tile, source, moves)
    else:
        yield from _scattered(order, rank, (step, other_step), (tile, source, target), last)


def _gathered(
    order: RingOrder, rank: Symbol, step: Symbol, tile: Any, source: Any, moves: Any
) -> Iterator[MapLemma]:
    is_own = truth(tile(rank, step) == rank)
    first = truth(step == 0)
    yield MapLemma("own", ("placement", "races"), terms.TRUE, terms.equal(is_own, first))
    waits = before((order.awaited(step), order.wait), (step + 1, order.product))
    arrives = terms.And(truth(source(rank, step) == tile(rank, step + 1)), waits)
    yield MapLemma("arrives", ("placement", "completion", "races"), truth(moves), arrives)


def _scattered(
    order: RingOrder,
    rank: Symbol,
    steps: tuple[Symbol, Symbol],
    maps: tuple[Any, Any, Any],
    last: Symbol,
) -> Iterator[MapLemma]:
    (step, other_step), (tile, source, target) = steps, maps
    is_own, ends = truth(tile(rank, step) == rank), truth(step == last)
    yield MapLemma("own", ("completion", "races"), terms.TRUE, terms.equal(is_own, ends))
    computed = before((step, order.product), (step, order.post))
    departs = terms.And(truth(target(rank, step) == tile(rank, step)), computed)
    yield MapLemma("departs", ("placement", "completion"), truth(step < last), departs)
    both = terms.And(truth(step < last), truth(other_step < last))
    repeats = truth(source(rank, step) == source(rank, other_step))
    same = truth(step == other_step)
    yield MapLemma("summed", ("completion",), terms.And(both, repeats), same)
    reused = before((order.awaited(step), order.wait), (step + 1, order.post))
    yield MapLemma("again", ("races",), truth(step < last), reused)


def _with_devices(space: SymbolSpace, order: Order) -> Callable[[Symbol, Symbol], Symbol]:
    """Return an order as a function of device and step."""
    (devices,) = space.sides
    return lambda rank, step: space.of(order(rank, step, devices))
