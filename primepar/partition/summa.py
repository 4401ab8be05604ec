"""SUMMA: two-dimensional tensor parallelism on a q x q mesh, in q steps.

Source: van de Geijn and Watts, 1997; for transformers Optimus, Xu et al., arXiv 2104.05343.

One block of every tensor rests on each device and nothing is replicated. Step t works with column
t of I and row t of W: forward broadcasts both, backward broadcasts W and reduces dI along the row,
gradient broadcasts I and reduces dW along the column.

Sent per device, p = q^2:  3 (q - 1) (MN + NK) / p  elements.
Held per device:           1 / p of each tensor, and two blocks of I and of W on their way.
"""

from __future__ import annotations

from fractions import Fraction

from primepar.schedule.primitive import Primitive, Slices, Value


class Summa(Primitive):
    """M=r, N=t, K=c in every phase; I, W and O rest as [r, c]."""

    axes = ("r", "c")
    label = "S"

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=t, K=c)

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        return {"I": dict(M=r, N=c), "W": dict(N=r, K=c), "O": dict(M=r, K=c)}[tensor]

    def sent(self, M: int, N: int, K: int, s: int) -> Fraction:
        return Fraction(3 * (s - 1) * (M * N + N * K), s * s)
