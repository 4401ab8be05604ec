"""Proves ring attention and the exchange of Ulysses for every number of devices.

Ring attention. The lemmas, for every p >= 1, all devices r and q, and all steps k and k' below p:

    once        a device has the keys of different parts at different steps
    alone       at one step, different devices have the keys of different parts
    first       the keys of step 0 are the device's own
    arrives     what the next device has at a step, a device has at the next one
    home        after the last step, what the next device has is the device's own
    neighbours  the target of a device's source is the device, and the other way round
    others      with p > 1 no device is its own source or target
    in-time     what was posted is awaited before it is used, and computed before it is sent

Why they are enough: there are p steps and p parts, so by `once` every block of queries meets every
block of keys once, which is coverage and the sum of the state. By `alone` and `once` the gradient
of a part is on one device at a time and on each of them once, so its sum has every term once; by
`arrives` it travels with its keys, and by `home` it ends where they started. By `first` backward
finds its keys where forward left them. By `neighbours` both ends of a transfer post it at the same
position of the same step, and by `in-time` every wait for it comes later. So whatever an
instruction waits for has a smaller (step, position), and there is no cycle. Both ends of a channel
post in the same order. What is in flight is neither read nor written before its wait, by `once` and
`in-time`.

Ulysses. The lemmas, for every p >= 1, a device r and members i and j, in both directions:

    pieces      what a device expects from a member is what that member sends it
    fills       the pieces from different members are different
    whole       all pieces that a device receives are of its own part

Its calls are collectives of all devices. That no device's list of them depends on its rank is seen
in its program, of one size, and not proved for every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from primepar.partition import ring_attention, ulysses
from primepar.verify.every_size.lemmas import Devices, Lemma, before, results, stated_for
from primepar.verify.report import PropertyResult

RING_PROPERTIES = (
    "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races",
)  # fmt: skip
EXCHANGE_PROPERTIES = ("coverage", "placement", "completion", "alignment", "races")
REASON = stated_for("number of devices")
Piece = Callable[[Any, Any, bool], tuple[Any, Any]]


@dataclass(frozen=True)
class RingOfKeys:
    """Whose keys a device has, from whom and to whom they travel, and the order of a step."""

    keys: Callable[[Any, Any, Any], Any] = ring_attention.keys_at
    source: Callable[[Any, Any], Any] = ring_attention.source_of
    target: Callable[[Any, Any], Any] = ring_attention.target_of
    forward: tuple[str, ...] = ring_attention.FORWARD
    backward: tuple[str, ...] = ring_attention.BACKWARD


@dataclass(frozen=True)
class HeadExchange:
    """Which pieces a device sends and expects, as (rows, heads)."""

    sent: Piece = ulysses.sent_piece
    received: Piece = ulysses.received_piece


def prove_ring(seconds: float, ring: RingOfKeys | None = None) -> Iterator[PropertyResult]:
    """Prove `ring-attention`, or another ring, for every number of devices."""
    return results(ring_lemmas(ring or RingOfKeys()), seconds, RING_PROPERTIES, REASON)


def prove_ulysses(seconds: float, exchange: HeadExchange | None = None) -> Iterator[PropertyResult]:
    """Prove the exchange of `ulysses`, or another one, for every number of devices."""
    lemmas = exchange_lemmas(exchange or HeadExchange())
    return results(lemmas, seconds, EXCHANGE_PROPERTIES, REASON)


def ring_lemmas(ring: RingOfKeys) -> list[Lemma]:
    """The lemmas on a ring: on two devices r and q, and two steps k and j."""
    devices = Devices(("r", "q", "k", "k'"))
    (r, q, k, j), p, over = devices.symbols, devices.count, devices.over
    keys, source, target = (devices.of(f) for f in (ring.keys, ring.source, ring.target))
    there, back = ring.forward.index, ring.backward.index
    # `k + 1` is the next step, where what was posted at step k is used: keys travel while their
    # predecessors are multiplied.
    in_order = [  # pairs of actions of which the first must come before the second
        ((k, there("post keys")), (k, there("await keys"))),
        ((k, there("await keys")), (k + 1, there("part"))),
        ((k, back("post keys")), (k, back("await keys"))),
        ((k, back("await keys")), (k + 1, back("query"))),
        ((k, back("keys")), (k, back("post gradient"))),
        ((k, back("post gradient")), (k + 1, back("await gradient"))),
        ((k, back("await gradient")), (k, back("keys"))),
    ]
    return [
        Lemma(
            # Not *other steps have other keys* but the reverse: where it fails, Z3's numbers are
            # two steps at which a device has the same keys.
            "once", ("coverage", "completion", "races"), over, k == j, [keys(r, k) == keys(r, j)]
        ),
        Lemma("alone", ("completion", "races"), over, r == q, [keys(r, k) == keys(q, k)]),
        Lemma("first", ("placement", "alignment"), over, keys(r, 0) == r),
        Lemma(
            "arrives", ("placement", "completion"), over,
            # There is no step p: what the source has at the last step is for `home`.
            keys(source(r), k) == keys(r, k + 1), [k < p - 1],
        ),
        Lemma("home", ("completion",), over, keys(source(r), p - 1) == r),
        Lemma(
            "neighbours", ("placement", "deadlock-freedom"), over,
            (target(source(r)) == r) & (source(target(r)) == r),
        ),
        Lemma(
            "others", ("deadlock-freedom", "races"), over,
            # A device alone is its own neighbour, and sends nothing.
            (source(r) != r) & (target(r) != r), [p > 1],
        ),
        Lemma(
            "in-time", ("placement", "completion", "deadlock-freedom", "races"), over,
            reduce(and_, (before(first, second) for first, second in in_order)),
        ),
    ]  # fmt: skip


def exchange_lemmas(exchange: HeadExchange) -> list[Lemma]:
    """The lemmas on an exchange: on a device r and two members i and j, in both directions."""
    devices = Devices(("r", "i", "j"))
    (r, i, j), over = devices.symbols, devices.over
    pieces, fills, whole = [], [], []
    for to_heads in (True, False):
        expected, sent = exchange.received(r, i, to_heads), exchange.sent(i, r, to_heads)
        another = exchange.received(r, j, to_heads)
        pieces += [expected[0] == sent[0], expected[1] == sent[1]]
        # Two pieces are one only if they are from one member.
        fills.append((expected[0] != another[0]) | (expected[1] != another[1]) | (i == j))
        whole.append((expected[1] if to_heads else expected[0]) == r)
    return [
        Lemma("pieces", ("placement", "completion", "alignment"), over, reduce(and_, pieces)),
        Lemma("fills", ("placement", "races"), over, reduce(and_, fills)),
        Lemma("whole", ("coverage", "placement", "alignment"), over, reduce(and_, whole)),
    ]
