"""Grids of p x q x d devices: gather, multiply and scatter in one step, and keep what fits.

Source: all-gather, multiply and reduce-scatter on the best grid reach the lower bound of one
product (Al Daas et al., arXiv 2205.13407); with copies that are kept between phases, as here, ours.
With $q = 1$ and $d = 1$ it is data parallelism of which the weights are sharded (ZeRO-3, arXiv
1910.02054). With $p = 1$ and $d = 1$ it is the column operator of sequence parallelism.

Every tensor is sharded over all devices between phases. Device (i, j, e) multiplies I[i, e] by
W[e, j]. I is gathered along j, W along i, and O is scattered along e. Backward and gradient gather
dO once for both. What forward has gathered is kept for them, or I alone, or W alone, or nothing. So
the four are steps from the most memory to one copy of each tensor. A word that is kept is a word
that is not sent again. How near they come to what no schedule can beat is on the page of lower
bounds.

Sent per device:  $2 [(q - 1) MN + (p - 1) NK + (d - 1) MK] / (p q d)$  elements,
                  $(q - 1) MN / (p q d)$  more where I is gathered again, and
                  $(p - 1) NK / (p q d)$  more where W is.
Held per device:  one part of p q d of each tensor at home; between phases q parts of I and p of W
                  where they are kept. While backward and gradient run together at most
                  $[2 q MN + 2 p NK + (d + 1) MK] / (p q d)$; with $d = 1$ they run one after the
                  other, and less is live.
"""

from __future__ import annotations

from primepar.schedule.primitive import ANY, Primitive, Slices, Value, largest, where


class GridKept(Primitive):
    """All-stash: M=i, N=e, K=j in every phase; the I and W that forward gathers are kept."""

    axes = {"i": "p", "j": "q", "e": "d"}
    label = "G"
    keeps: tuple[str, ...] = ("I", "W")

    def steps(self, p: Value, q: Value, d: Value) -> Value:
        return 1

    def forward(
        self, i: Value, j: Value, e: Value, t: Value, p: Value, q: Value, d: Value
    ) -> Slices:
        return dict(M=i, N=e, K=j)

    def home(
        self, tensor: str, i: Value, j: Value, e: Value, p: Value, q: Value, d: Value
    ) -> Slices:
        # Rows are in p q d slices: those of I are cut along j, those of O along e.
        return {
            "I": dict(M=(i, j), N=e),
            "W": dict(N=e, K=(j, i)),
            "O": dict(M=(i, ANY, e), K=j),
        }[tensor]

    def sent(self, M: Value, N: Value, K: Value, p: Value, q: Value, d: Value) -> Value:
        of_I, of_W = (2 if tensor in self.keeps else 3 for tensor in "IW")
        moved = of_I * (q - 1) * M * N + of_W * (p - 1) * N * K + 2 * (d - 1) * M * K
        return moved / (p * q * d)

    def held(self, M: Value, N: Value, K: Value, p: Value, q: Value, d: Value) -> Value:
        together = 2 * q * M * N + 2 * p * N * K + (d + 1) * M * K
        apart = (q + 1) * M * N + (p + 1) * N * K + 2 * M * K
        if "I" in self.keeps:
            apart = largest(apart, 2 * q * M * N + p * N * K + 2 * M * K)
        return where(d == 1, apart, together) / (p * q * d)


class GridKeepsInput(GridKept):
    """`GridKept` that keeps I alone: W is gathered again for backward."""

    label = "Gi"
    keeps = ("I",)


class GridKeepsWeight(GridKept):
    """`GridKept` that keeps W alone: I is gathered again for gradient."""

    label = "Gw"
    keeps = ("W",)


class GridRegathered(GridKept):
    """`GridKept` that keeps nothing: one copy of each tensor between phases."""

    label = "Gr"
    keeps = ()
