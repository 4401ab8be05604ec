"""Tesseract: 2.5-dimensional tensor parallelism on a q x q x d mesh, in q steps.

Source: Wang et al., Tesseract, ICPP 2022, arXiv 2105.14500.

Each of the d layers runs SUMMA on its own rows of M; W is replicated over the depth e and its
gradient is summed over it. Depth 1 is SUMMA.

Sent per device, $p = q^2 d$:  $3 (q - 1) (MN / p + NK / q^2) + 2 (d - 1) / d NK / q^2$  elements.
Held per device:             $1 / p$ of I and O, $1 / q^2$ of W; with panels and gradients at most
                             $(4 MN + 2 MK) / p + 3 NK / q^2$.
"""

from __future__ import annotations

from primepar.schedule.primitive import Primitive, Slices, Value, where


class Tesseract(Primitive):
    """M=(e, r), N=t, K=c in every phase; homes: I and O [(e, r), c], W [r, c] in each layer."""

    axes = {"r": "q", "c": "q", "e": "d"}
    label = "T"

    def forward(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=(e, r), N=t, K=c)

    def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
        return {"I": dict(M=(e, r), N=c), "W": dict(N=r, K=c), "O": dict(M=(e, r), K=c)}[tensor]

    def sent(self, M: Value, N: Value, K: Value, q: Value, d: Value) -> Value:
        layer = 3 * (q - 1) * (M * N / (q**2 * d) + N * K / q**2)
        return layer + 2 * (d - 1) * N * K / (d * q**2)

    def held(self, M: Value, N: Value, K: Value, q: Value, d: Value) -> Value:
        rows, columns = where(q > 2, 4, q + 1), where(q > 1, 3, 2)
        return (rows * M * N + 2 * M * K) / (q**2 * d) + columns * N * K / q**2
