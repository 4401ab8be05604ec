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
from time import perf_counter
from typing import Any

from primepar.partition import ring_attention, ulysses
from primepar.verify.every_size.lemmas import MapLemma, before, prove_lemmas, symbol
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_symbols import SymbolSpace, Term, truth
from primepar.verify.report import PropertyResult

RING_NAMES = ("r", "q", "k", "k'")
"""Two devices and two steps."""
RING_PROPERTIES = (
    "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races",
)  # fmt: skip
EXCHANGE_NAMES = ("r", "i", "j")
"""A device and two members."""
EXCHANGE_PROPERTIES = ("coverage", "placement", "completion", "alignment", "races")
NOTE = "for every number of devices"
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
    end, space = perf_counter() + seconds, SymbolSpace(("p",))
    lemmas = (*_maps(ring or RingOfKeys(), space), _in_time(ring or RingOfKeys(), space))
    yield from prove_lemmas(lemmas, space, RING_NAMES, RING_PROPERTIES, NOTE, end)


def prove_ulysses(seconds: float, exchange: HeadExchange | None = None) -> Iterator[PropertyResult]:
    """Prove the exchange of `ulysses`, or another one, for every number of devices."""
    end, space = perf_counter() + seconds, SymbolSpace(("p",))
    lemmas = _exchanged(exchange or HeadExchange(), space)
    yield from prove_lemmas(lemmas, space, EXCHANGE_NAMES, EXCHANGE_PROPERTIES, NOTE, end)


def _maps(ring: RingOfKeys, space: SymbolSpace) -> Iterator[MapLemma]:
    (p,) = space.sides
    r, q, k, later = (symbol(space, name) for name in RING_NAMES)

    def keys(rank: Any, step: Any) -> Any:
        return space.of(ring.keys(rank, step, p))

    source, target = space.of(ring.source(r, p)), space.of(ring.target(r, p))
    same_keys, same_part = keys(r, k) == keys(r, later), keys(r, k) == keys(q, k)
    yield MapLemma("once", ("coverage", "completion", "races"), truth(same_keys), truth(k == later))
    yield MapLemma("alone", ("completion", "races"), truth(same_part), truth(r == q))
    yield MapLemma("first", ("placement", "alignment"), terms.TRUE, truth(keys(r, 0) == r))
    arrives = truth(keys(source, k) == keys(r, k + 1))
    yield MapLemma("arrives", ("placement", "completion"), truth(k < p - 1), arrives)
    yield MapLemma("home", ("completion",), terms.TRUE, truth(keys(source, p - 1) == r))
    back = terms.And(
        truth(space.of(ring.target(source, p)) == r), truth(space.of(ring.source(target, p)) == r)
    )
    yield MapLemma("neighbours", ("placement", "deadlock-freedom"), terms.TRUE, back)
    apart = terms.And(truth(source != r), truth(target != r))
    yield MapLemma("others", ("deadlock-freedom", "races"), truth(p > 1), apart)


def _in_time(ring: RingOfKeys, space: SymbolSpace) -> MapLemma:
    """Every pair of actions of which the first must come before the second."""
    k = symbol(space, "k")
    there, back = ring.forward.index, ring.backward.index
    pairs = [
        ((k, there("post keys")), (k, there("await keys"))),
        ((k, there("await keys")), (k + 1, there("part"))),
        ((k, back("post keys")), (k, back("await keys"))),
        ((k, back("await keys")), (k + 1, back("query"))),
        ((k, back("keys")), (k, back("post gradient"))),
        ((k, back("post gradient")), (k + 1, back("await gradient"))),
        ((k, back("await gradient")), (k, back("keys"))),
    ]
    holds: Term = terms.TRUE
    for first, second in pairs:
        holds = terms.And(holds, before(first, second))
    needed = ("placement", "completion", "deadlock-freedom", "races")
    return MapLemma("in-time", needed, terms.TRUE, holds)


def _exchanged(exchange: HeadExchange, space: SymbolSpace) -> Iterator[MapLemma]:
    r, i, j = (symbol(space, name) for name in EXCHANGE_NAMES)
    pieces: Term = terms.TRUE
    fills: Term = terms.TRUE
    whole: Term = terms.TRUE
    for to_heads in (True, False):
        expected, sent = exchange.received(r, i, to_heads), exchange.sent(i, r, to_heads)
        another = exchange.received(r, j, to_heads)
        part = expected[1] if to_heads else expected[0]
        pieces = terms.And(pieces, _equal(expected, sent))
        fills = terms.And(fills, terms.Or(terms.Not(_equal(expected, another)), truth(i == j)))
        whole = terms.And(whole, truth(part == r))
    yield MapLemma("pieces", ("placement", "completion", "alignment"), terms.TRUE, pieces)
    yield MapLemma("fills", ("placement", "races"), terms.TRUE, fills)
    yield MapLemma("whole", ("coverage", "placement", "alignment"), terms.TRUE, whole)


def _equal(first: tuple[Any, Any], second: tuple[Any, Any]) -> Term:
    return terms.And(truth(first[0] == second[0]), truth(first[1] == second[1]))
