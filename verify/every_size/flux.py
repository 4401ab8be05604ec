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
from typing import Any

from primepar.partition import flux
from primepar.verify.every_size.lemmas import Devices, Lemma, before, results, stated_for
from primepar.verify.report import PropertyResult

Order = Callable[[Any, Any, Any], Any]
"""From a device, a step and the number of devices to a device."""
PROPERTIES = ("coverage", "placement", "completion", "deadlock-freedom", "races")


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
    reason = stated_for("number of devices and chunks")
    return results(lemmas(order), seconds, PROPERTIES, reason)


def lemmas(order: RingOrder) -> list[Lemma]:
    """The lemmas on an order: on a device r and two steps k and j."""
    devices = Devices(("r", "k", "k'"))
    (r, k, j), last, over = devices.symbols, devices.count - 1, devices.over
    tile, source, target = map(devices.of, (order.tile, order.source, order.target))
    posted, awaited = (k, order.post), (order.awaited(k), order.wait)
    of_both = [
        Lemma("once", ("coverage", "races"), over, k == j, [tile(r, k) == tile(r, j)]),
        Lemma(
            "matched", ("placement", "completion", "deadlock-freedom"), over,
            # Of p tiles in a ring p - 1 arrive: the last step posts nothing.
            (target(source(r, k), k) == r) & (source(target(r, k), k) == r), [k < last],
        ),
        Lemma(
            "channel", ("deadlock-freedom",), over,
            k == j, [k < last, j < last, target(r, k) == target(r, j)],
        ),
        Lemma(
            "no-self", ("deadlock-freedom", "races"), over,
            (target(r, k) != r) & (source(r, k) != r), [k < last],
        ),
        Lemma(
            "signal", ("placement", "deadlock-freedom"), over, before(posted, awaited), [k < last]
        ),
        Lemma("ends", ("deadlock-freedom", "races"), over, order.awaited(k) <= last, [k < last]),
    ]  # fmt: skip
    if order.gathers:
        # From whom a device receives at step k is whose chunk it multiplies at step k + 1, after
        # the wait.
        arrives = (source(r, k) == tile(r, k + 1)) & before(awaited, (k + 1, order.product))
        return [
            *of_both,
            # In both directions: a second product of the own part would read a buffer that by then
            # holds another one.
            Lemma("own", ("placement", "races"), over, same(tile(r, k) == r, k == 0)),
            Lemma("arrives", ("placement", "completion", "races"), over, arrives, [k < last]),
        ]
    # The reverse of `arrives`: what is sent at step k has been multiplied at step k.
    departs = (target(r, k) == tile(r, k)) & before((k, order.product), posted)
    return [
        *of_both,
        Lemma("own", ("completion", "races"), over, same(tile(r, k) == r, k == last)),
        Lemma("departs", ("placement", "completion"), over, departs, [k < last]),
        Lemma(
            # From each of the p - 1 others at one step, in p - 1 steps: so from each exactly once.
            "summed", ("completion",), over,
            k == j, [k < last, j < last, source(r, k) == source(r, j)],
        ),
        Lemma("again", ("races",), over, before(awaited, (k + 1, order.post)), [k < last]),
    ]  # fmt: skip


def same(first: Any, second: Any) -> Any:
    """Whether two conditions hold together."""
    return (first & second) | (~first & ~second)
