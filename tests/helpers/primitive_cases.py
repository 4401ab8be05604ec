"""Right primitives that the library has not: sums that travel or rest, layers, other walks."""

from __future__ import annotations

from primepar import Primitive, where
from primepar.partition import PrimePar
from primepar.schedule.expression import Value
from primepar.schedule.primitive import Slices


class TravellingSums(Primitive):
    """W stays; I and dO pass along the rows, O and dI along with their partial sums."""

    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c + t) % s, N=r, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 1 + t) % s, N=r, K=c)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 2 + t) % s, N=r, K=c)


class OtherWay(PrimePar):
    """PrimePar whose backward walks the other way, so that W has further to go home."""

    sent, held = Primitive.sent, Primitive.held

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c - 1) % s, K=(c - t) % s)


class Layers(Primitive):
    """PrimePar on each of `d` layers that share out N: O is reduced over them."""

    axes = {"r": "q", "c": "q", "e": "d"}

    def forward(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r, N=(e, (r + c + t) % q), K=c)

    def backward(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r, N=(e, (r + c - 1) % q), K=(c + t) % q)

    def gradient(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        last = where(t == q - 1, 1, 0)
        return dict(M=(r + t) % q, N=(e, (r + c - 1 + last) % q), K=(c - 1 + last) % q)


class Rectangle(Primitive):
    """Rows of M and columns of K on a mesh that need not be square."""

    axes = {"r": "p", "c": "q"}

    def steps(self, p: Value, q: Value) -> Value:
        return 1

    def forward(self, r: Value, c: Value, t: Value, p: Value, q: Value) -> Slices:
        return dict(M=r, K=c)


class Mirror(PrimePar):
    """PrimePar whose rows go backward in N, so that W is mirrored between two phases."""

    sent, held = Primitive.sent, Primitive.held

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(c - r - 1) % s, K=(c + t) % s)


class ResidentSums(PrimePar):
    """PrimePar whose dO stays in backward: sums of dI stay on every device, and are reduced."""

    sent, held = Primitive.sent, Primitive.held

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + t) % s, K=c)
