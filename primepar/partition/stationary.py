"""The stationary family: one map for all three phases on an s x s mesh, one tensor never moves.

Source: ours, after Cannon's algorithm and the stationary-A, -B, -C variants of SUMMA; MeshSlice
(ISCA 2025) chooses among such dataflows per layer.

Because a map is a bijection of (device, step) to sub-operators, the same one serves forward,
backward and gradient. The tensor without `t` stays with its gradient, and the other two rotate.
Where the output of a phase rotates, its partial sums do, and end at home. Where dO rotates, it does
so once for backward and gradient together.

An operator that keeps O, followed by one that keeps I, needs no redistribution, forward or
backward. The input of the first and the output of the second are both resident as [r, r + c].

`BothWays` cuts what rotates in two. One half goes round in one direction, the other half in the
opposite one: each step uses both directions of every link, and a hop takes half as long. `h` is a
virtual axis, a device has both its places. Device (0, 0) of three columns multiplies $N = 0, 1, 2$
of the first half and $N = 0, 2, 1$ of the other. What is sent and held is the same. Rings in both
directions are known from all-gathers; as primitives of a training step they are ours.

Sent per device, $p = s^2$:  output stays $3 (s - 1) (MN + NK) / p$,
                           input stays $(s - 1) (3 NK + 2 MK) / p$,
                           weight stays $(s - 1) (3 MN + 2 MK) / p$  elements.
Held per device:           $1 / p$ of each tensor, and up to three more blocks of each that is
                           moving: `held` is the sum, exact from $s = 4$ on.
"""

from __future__ import annotations

from primepar.schedule.primitive import Primitive, Slices, Value, largest, where


class OutputStays(Primitive):
    """M=r, N=r+c+t, K=c in every phase; O and dO stay at [r, c]."""

    axes = ("r", "c")
    label = "Os"

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + t) % s, K=c)

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        n = (r + c) % s
        return {"I": dict(M=r, N=n), "W": dict(N=n, K=c), "O": dict(M=r, K=c)}[tensor]

    def sent(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return 3 * (s - 1) * (M * N + N * K) / s**2

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        moves = largest(
            5 * M * N + 3 * N * K + 2 * M * K,
            4 * M * N + 5 * N * K + 2 * M * K,
        )
        return where(s == 1, 2 * (M * N + N * K + M * K), moves / s**2)


class InputStays(Primitive):
    """M=r, N=c, K=r+c+t in every phase; I and dI stay at [r, c]."""

    axes = ("r", "c")
    label = "Is"

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=c, K=(r + c + t) % s)

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        k = (r + c) % s
        return {"I": dict(M=r, N=c), "W": dict(N=c, K=k), "O": dict(M=r, K=k)}[tensor]

    def sent(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return (s - 1) * (3 * N * K + 2 * M * K) / s**2

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        moves = largest(
            2 * M * N + 7 * N * K + 4 * M * K,
            M * N + 3 * N * K + 5 * M * K,
        )
        return where(s == 1, 2 * (M * N + N * K + M * K), moves / s**2)


class WeightStays(Primitive):
    """M=r+c+t, N=r, K=c in every phase; W and dW stay at [r, c]."""

    axes = ("r", "c")
    label = "Ws"

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c + t) % s, N=r, K=c)

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        m = (r + c) % s
        return {"I": dict(M=m, N=r), "W": dict(N=r, K=c), "O": dict(M=m, K=c)}[tensor]

    def sent(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return (s - 1) * (3 * M * N + 2 * M * K) / s**2

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        moves = largest(
            7 * M * N + 2 * N * K + 4 * M * K,
            3 * M * N + N * K + 5 * M * K,
        )
        return where(s == 1, 2 * (M * N + N * K + M * K), moves / s**2)


class BothWays(Primitive):
    """A ring of the stationary family in `b` parts: the first goes on, the others go back."""

    axes = {"r": "s", "c": "s", "h": "b"}
    virtual = ("h",)
    one_way: type[OutputStays | InputStays | WeightStays]
    """The ring in one direction."""
    rotates: str
    """The dim that is cut into the parts."""

    def forward(self, r: Value, c: Value, h: Value, t: Value, s: Value, b: Value) -> Slices:
        return self._part(self.one_way().forward(r, c, where(h == 0, t, -t), s), h)

    def home(self, tensor: str, r: Value, c: Value, h: Value, s: Value, b: Value) -> Slices:
        return self._part(self.one_way().home(tensor, r, c, s), h)

    def _part(self, slices: Slices, h: Value) -> Slices:
        """The slices of one part: N=1 is N=(1, h), where N is cut."""
        cut = {dim: (index, h) for dim, index in slices.items() if dim == self.rotates}
        return slices | cut

    def sent(self, M: Value, N: Value, K: Value, s: Value, b: Value) -> Value:
        return self.one_way().sent(M, N, K, s)

    def held(self, M: Value, N: Value, K: Value, s: Value, b: Value) -> Value:
        return self.one_way().held(M, N, K, s)


class OutputStaysBothWays(BothWays):
    """`OutputStays` with parts of N that go round in opposite directions."""

    label, one_way, rotates = "Ob", OutputStays, "N"


class InputStaysBothWays(BothWays):
    """`InputStays` with parts of K that go round in opposite directions."""

    label, one_way, rotates = "Ib", InputStays, "K"


class WeightStaysBothWays(BothWays):
    """`WeightStays` with parts of M that go round in opposite directions."""

    label, one_way, rotates = "Wb", WeightStays, "M"
