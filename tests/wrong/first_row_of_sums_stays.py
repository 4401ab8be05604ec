"""Rows by columns of the input, whose sums have a home in the first row alone."""

from __future__ import annotations

from primepar.schedule.primitive import Primitive, Slices, Value


class FirstRowOfSumsStays(Primitive):
    axes = ("r", "c")

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=c)

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        return {"I": dict(M=r, N=c), "W": dict(N=c), "O": dict(M=0)}[tensor]
