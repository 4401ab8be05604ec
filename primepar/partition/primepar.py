"""PrimePar's spatial-temporal primitive, on an s x s mesh in s steps.

Source: Wang et al., PrimePar, ASPLOS 2024, equations 4 to 6 and table 1.

No tensor is replicated and nothing is reduced: at every step each device holds one block of every
tensor. O and dI stay. I, W and dO hop to a neighbour while the product of the step runs. W makes
one more hop at the end of backward, and dW one before its last product. So both end where W starts
the next forward.

Sent per device, $p = s^2$:  $[2 (s - 1) (MN + MK) + 2 s NK] / p$  elements, none if $s = 1$.
Held per device:           $1 / p$ of each tensor, and one more block of each that is moving; with
                           the gradients at most $[2 (MN + NK + MK) + max(2 NK, MN + MK)] / p$.
"""

from __future__ import annotations

from primepar.schedule.primitive import Primitive, Slices, Value, largest, where


class PrimePar(Primitive):
    """P_{s x s}: Wang et al., ASPLOS 2024, equations 4 to 6."""

    axes = ("r", "c")
    label = "P"

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + t) % s, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c - 1) % s, K=(c + t) % s)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)

    def sent(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        moved = 2 * (s - 1) * (M * N + M * K) + 2 * s * N * K
        return where(s == 1, 0, moved / s**2)

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        resident = 2 * (M * N + N * K + M * K)
        moves = largest(resident + 2 * N * K, resident + M * N + M * K)
        return where(s == 1, resident, moves / s**2)
