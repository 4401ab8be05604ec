"""SUMMA: two-dimensional tensor parallelism on a q x q mesh, or on one of q u x q v, in q steps.

Source: van de Geijn and Watts, 1997; for transformers Optimus, Xu et al., arXiv 2104.05343.

Each device holds an equal part of every tensor, and nothing is replicated. Step t works with
panel t: column t of I and row t of W. Forward broadcasts both, backward broadcasts W and reduces dI
along the row, gradient broadcasts I and reduces dW along the column.

On the rectangular mesh v columns of devices hold panel t of I, and u rows hold panel t of W. N is
cut in q u v slices, digits (q, u, v): a device holds every v-th slice of I in its panel and v of W
next to one another. With one panel the broadcasts and reduces are all-gathers and reduce-scatters.
This form is ours: classical SUMMA takes panels of any width, here their number divides both lengths
of the mesh. `S4x6` has their greatest common divisor, two; `S1x4x1x6`, a length for each axis, one.

On q x q x d devices each of d layers runs SUMMA on its own part of N, and O is reduced and
scattered over them; dO is gathered once for backward and gradient. A depth that divides the summed
dim is from 2.5D multiplication (Solomonik and Demmel, 2011), which replicates I and W; here nothing
is. It sends what a grid of that size sends which keeps nothing, and holds panels in place of rows.
The other form keeps the panels for backward and gradient, and sends a third less of them.

Sent per device:  q x q      $3 (q - 1) (MN + NK) / p$  elements, $p = q^2$,
                  q u x q v  $3 [(q v - 1) MN + (q u - 1) NK] / p$  elements, $p = q^2 u v$,
                  q x q x d  $[3 (q - 1) (MN + NK) + 2 (d - 1) MK] / p$  elements, $p = q^2 d$,
                  and kept   $2 [(q - 1) (MN + NK) + (d - 1) MK] / p$  elements.
Held per device:  $1 / p$ of each tensor, and up to two panels in flight: each $1 / p$ of I and W,
                  $v / p$ of I and $u / p$ of W where the mesh is rectangular. With the gradients at
                  most $(4 MN + 3 NK + 2 MK) / p$; where the mesh is rectangular at most
                  $((3 v + 1) MN + (2 u + 1) NK + 2 MK) / p$, an upper bound; with layers at most
                  $[5 (MN + NK) + (d + 1) MK] / p$, and where they are kept
                  $[(q + 2) (MN + NK) + (d + 1) MK] / p$.
"""

from __future__ import annotations

from math import gcd

from primepar.schedule.primitive import ANY, Primitive, Slices, Value, largest, where


class Summa(Primitive):
    """M=r, N=t, K=c in every phase; homes: I, W and O [r, c]."""

    axes = ("r", "c")
    label = "S"

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=t, K=c)

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        return {"I": dict(M=r, N=c), "W": dict(N=r, K=c), "O": dict(M=r, K=c)}[tensor]

    def sent(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return 3 * (s - 1) * (M * N + N * K) / s**2

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        rows, columns = where(s > 2, 4, s + 1), where(s > 1, 3, 2)
        return (rows * M * N + columns * N * K + 2 * M * K) / s**2


class SummaRectangular(Primitive):
    """M=(r, a), N=t, K=(c, b); homes: I [(r, a), (c, *, b)], W and O [(r, a), (c, b)].

    Its label is that of `Summa`; `S2x3` gives the rows and columns of the mesh.
    """

    axes = {"r": "q", "a": "u", "c": "q", "b": "v"}
    label = "S"
    example = "S2x3"

    def forward(
        self, r: Value, a: Value, c: Value, b: Value, t: Value, q: Value, u: Value, v: Value
    ) -> Slices:
        return dict(M=(r, a), N=t, K=(c, b))

    def home(
        self, tensor: str, r: Value, a: Value, c: Value, b: Value, q: Value, u: Value, v: Value
    ) -> Slices:
        return {
            "I": dict(M=(r, a), N=(c, ANY, b)),
            "W": dict(N=(r, a), K=(c, b)),
            "O": dict(M=(r, a), K=(c, b)),
        }[tensor]

    def sent(self, M: Value, N: Value, K: Value, q: Value, u: Value, v: Value) -> Value:
        rows, columns = q * u, q * v
        return 3 * ((columns - 1) * M * N + (rows - 1) * N * K) / (rows * columns)

    def held(self, M: Value, N: Value, K: Value, q: Value, u: Value, v: Value) -> Value:
        rows, columns = where(q > 2, 3, q) * v + 1, where(q > 1, 2, 1) * u + 1
        return (rows * M * N + columns * N * K + 2 * M * K) / (q**2 * u * v)

    def text(self, sides: tuple[int, ...]) -> str:
        """`S4x6` if it has the most panels possible and is no square, `S1x4x1x6` otherwise."""
        q, u, v = sides
        return f"{self.label}{q * u}x{q * v}" if gcd(u, v) == 1 and u != v else super().text(sides)

    def sides_of(self, lengths: tuple[int, ...]) -> tuple[int, ...] | None:
        """The sides of a spelling with the lengths of the mesh, or of each axis."""
        if len(lengths) != 2:
            return super().sides_of(lengths)
        panels = gcd(*lengths) or 1
        return panels, lengths[0] // panels, lengths[1] // panels


class SummaDeep(Primitive):
    """M=r, N=(e, t), K=c in every phase; homes: I [r, (e, c)], W [(e, r), c], O [(r, e), c]."""

    axes = {"r": "q", "c": "q", "e": "d"}
    label = "Sd"

    def forward(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r, N=(e, t), K=c)

    def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
        return {
            "I": dict(M=r, N=(e, c)),
            "W": dict(N=(e, r), K=c),
            "O": dict(M=(r, e), K=c),
        }[tensor]

    def sent(self, M: Value, N: Value, K: Value, q: Value, d: Value) -> Value:
        return (3 * (q - 1) * (M * N + N * K) + 2 * (d - 1) * M * K) / (q**2 * d)

    def held(self, M: Value, N: Value, K: Value, q: Value, d: Value) -> Value:
        panels = where(q > 2, 5, 2 * q)
        layers = panels * (M * N + N * K) + (d + 1) * M * K
        rows, columns = where(q > 2, 4, q + 1), where(q > 1, 3, 2)
        one_layer = rows * M * N + columns * N * K + 2 * M * K
        return where(d == 1, one_layer, layers) / (q**2 * d)


class SummaDeepKept(SummaDeep):
    """`SummaDeep` that keeps the panels of I and W which forward broadcasts: all-stash in steps."""

    label = "Sk"
    keeps = ("I", "W")

    def sent(self, M: Value, N: Value, K: Value, q: Value, d: Value) -> Value:
        return 2 * ((q - 1) * (M * N + N * K) + (d - 1) * M * K) / (q**2 * d)

    def held(self, M: Value, N: Value, K: Value, q: Value, d: Value) -> Value:
        both = 2 * (M * N + N * K)
        layers = where(q == 1, both, (q + 2) * (M * N + N * K)) + (d + 1) * M * K
        panels = largest((q + 2) * M * N + q * N * K, 3 * (M * N + N * K))
        one_layer = where(q == 1, both, panels) + 2 * M * K
        return where(d == 1, one_layer, layers) / (q**2 * d)
