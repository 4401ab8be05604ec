"""Maps that would take memory or time without end, each proved in little memory.

`python map_limits.py` prints one JSON line for each class: its name, and the verdict with whatever
is not proved, or the error. Memory is limited to `MOST_MEMORY` bytes of addresses.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from primepar import Primitive, where
from primepar.errors import PrimeParError

MOST_MEMORY = 3 * 2**30
Digits = dict[str, Any]


class Rows(Primitive):
    """M over the devices of one axis, in one step."""

    axes = ("r",)

    def steps(self, s: Any) -> Any:
        return 1

    def forward(self, r: Any, t: Any, s: Any) -> Digits:
        return dict(M=r)


class Far(Rows):
    """A sum of 3,000 terms: right, but many sides away from its own."""

    def forward(self, r: Any, t: Any, s: Any) -> Digits:
        for _ in range(3000):
            r = r + 1
        return dict(M=r % s)


class TooDeep(Rows):
    """More terms than anybody writes."""

    def forward(self, r: Any, t: Any, s: Any) -> Digits:
        for _ in range(20_000):
            r = r + 1
        return dict(M=r % s)


class Threshold(Rows):
    """From a side of a million on there is one step."""

    def steps(self, s: Any) -> Any:
        return where(s >= 10**6, 1, s)

    def forward(self, r: Any, t: Any, s: Any) -> Digits:
        return dict(M=(r, t))

    def home(self, tensor: str, r: Any, s: Any) -> Digits:
        return {"I": dict(M=r), "W": {}, "O": dict(M=r)}[tensor]


class Grid(Primitive):
    """Cannon's product, with a map of N of its own."""

    axes = ("r", "c")

    def forward(self, r: Any, c: Any, t: Any, s: Any) -> Digits:
        return dict(M=r, N=self.slice_of(r + c + t, s), K=c)

    def slice_of(self, index: Any, s: Any) -> Any:
        return index % s

    def home(self, tensor: str, r: Any, c: Any, s: Any) -> Digits:
        return {"I": dict(M=r, N=c), "W": dict(N=r, K=c), "O": dict(M=r, K=c)}[tensor]


class Shared(Grid):
    """An expression of 43 nodes whose text has millions of characters."""

    def slice_of(self, index: Any, s: Any) -> Any:
        for _ in range(14):
            index = where(index >= s, index - s, index)
        return index


class Squared(Grid):
    """A number of 2**60 bits."""

    def slice_of(self, index: Any, s: Any) -> Any:
        for _ in range(60):
            index = index * index
        return index % s


class Constant(Rows):
    """A number that NumPy does not have."""

    def forward(self, r: Any, t: Any, s: Any) -> Digits:
        return dict(K=10**30 * r)


class TenMillion(Grid):
    """Ten million slices for each device."""

    def forward(self, r: Any, c: Any, t: Any, s: Any) -> Digits:
        return dict(M=r, N=(r + c + t) % s, K=10**7 * c)


class ManySteps(Rows):
    """Ten million steps."""

    def steps(self, s: Any) -> Any:
        return 10**7

    def forward(self, r: Any, t: Any, s: Any) -> Digits:
        return dict(M=(r, t))


class Fractions(Rows):
    """The index of a device, by way of a half."""

    def forward(self, r: Any, t: Any, s: Any) -> Digits:
        return dict(M=r * Fraction(1, 2) * 2)


class NoAxes(Primitive):
    """One device, which computes two slices of M in two steps."""

    axes = ()

    def steps(self) -> Any:
        return 2

    def forward(self, t: Any) -> Digits:
        return dict(M=2 * t)

    def home(self, tensor: str) -> Digits:
        return {}


class NoAxesRight(NoAxes):
    """The same, right."""

    def forward(self, t: Any) -> Digits:
        return dict(M=t)


KINDS: tuple[type[Primitive], ...] = (
    Far, TooDeep, Threshold, Shared, Squared, Constant, TenMillion, ManySteps, Fractions, NoAxes,
    NoAxesRight,
)  # fmt: skip


def result(prove: Callable[[Primitive], Any], kind: type[Primitive]) -> list[str]:
    """The verdict, and what is not proved; or the error of a map that is refused."""
    try:
        report = prove(kind())
    except PrimeParError as error:
        return [f"exit {error.exit_code}", str(error)]
    certified = ["certified"] if report.certificate is not None else []
    return [report.verdict, *certified, *(
        f"{one.name}: {one.counterexample or one.reason}" for one in report.properties
        if one.verdict in ("refuted", "unknown")
    )]  # fmt: skip


if __name__ == "__main__":
    from primepar.verify.primitive.proof import verify_primitive

    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    for kind in KINDS:
        print(json.dumps([kind.__name__, result(verify_primitive, kind)]), flush=True)
