"""Three-dimensional tensor parallelism on a q x q x q mesh, in one step.

Source: Agarwal et al., 1995; for transformers Bian et al., arXiv 2105.14450.

Every tensor is sharded in $q^3$ blocks between phases. Each phase gathers its two operands along
one axis each, multiplies, and scatters the sum along the third. dO is gathered once for backward
and gradient.
`ThreeD` keeps the I and W that forward gathered; `ThreeDRegathered` gathers them again, for less
memory. O has the home of the I of an operator whose axes j and l are exchanged (`ThreeDExchanged`).

Sent per device, $p = q^3$:  $2 (q - 1) (MN + NK + MK) / p$  elements, and
                           $(q - 1) (MN + NK) / p$  more where I and W are gathered again.
Held per device:           $1 / p$ of each tensor at home; $1 / q^2$ of I and W from forward on
                           where they are kept, and of the operands of a phase while it runs; with
                           the gradients at most $2 (MN + NK) / q^2 + (q + 1) MK / q^3$.
"""

from __future__ import annotations

from primepar.schedule.primitive import Primitive, Slices, Value


class ThreeD(Primitive):
    """M=i, N=l, K=j in every phase; homes: I [(i, j), l], W [l, (j, i)], O [(i, l), j]."""

    axes = ("i", "j", "l")
    label = "C"
    keeps: tuple[str, ...] = ("I", "W")

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, i: Value, j: Value, l: Value, t: Value, s: Value) -> Slices:
        return dict(M=i, N=l, K=j)

    def home(self, tensor: str, i: Value, j: Value, l: Value, s: Value) -> Slices:
        return {
            "I": dict(M=(i, j), N=l),
            "W": dict(N=l, K=(j, i)),
            "O": dict(M=(i, l), K=j),
        }[tensor]

    def sent(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        again = 0 if self.keeps else M * N + N * K
        return (s - 1) * (2 * (M * N + N * K + M * K) + again) / s**3

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return 2 * (M * N + N * K) / s**2 + (s + 1) * M * K / s**3


class ThreeDRegathered(ThreeD):
    """`ThreeD` that keeps no copy: I and W are gathered again for gradient and backward."""

    label = "Cr"
    keeps = ()


class ThreeDExchanged(ThreeD):
    """`ThreeD` with j and l exchanged: its I has the home of the O of `ThreeD`."""

    label = "D"

    def forward(self, i: Value, j: Value, l: Value, t: Value, s: Value) -> Slices:
        return super().forward(i, l, j, t, s)

    def home(self, tensor: str, i: Value, j: Value, l: Value, s: Value) -> Slices:
        return super().home(tensor, i, l, j, s)
