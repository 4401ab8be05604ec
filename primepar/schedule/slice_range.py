"""The likeliest mistake in a map: a slice index that runs past the side, as `% s` was forgotten.

Such a map is a map all the same, of more slices than it computes, so it is refuted and not refused;
what is found here is printed together with the refutation.

    >>> from primepar import Primitive
    >>> class Mine(Primitive):
    ...     axes = ("r",)
    ...     def forward(self, r, t, s): return dict(M=r, N=r + t)
    >>> unwrapped(Mine())
    'Mine.forward: N=r + t reaches 4 on side 3, at r=2, t=2: write N=(r + t) % s'
"""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from math import prod

from primepar.errors import PrimitiveError
from primepar.schedule.expression import Expression, evaluate
from primepar.schedule.operators import PHASES
from primepar.schedule.primitive import Primitive
from primepar.schedule.tracing import maps_of

SIDE = 3
"""Length of every side on which the slices are counted."""


def unwrapped(primitive: Primitive) -> str | None:
    """The first index of one digit whose slices are as many as no product of sides or steps.

    A sum such as `r + t` has 2s - 1 values. Returns what to write instead, None if there is none.
    """
    maps = maps_of(primitive)
    sides = dict.fromkeys(primitive.side_names, SIDE)
    steps = evaluate(maps.steps, sides)
    axes = len(primitive.axis_sides)
    counts = {prod(factors) for length in range(axes + 2)
              for factors in combinations_with_replacement((1, SIDE, steps), length)}  # fmt: skip
    for phase, dims in product(PHASES, "BMNK"):
        index = maps.phases[phase].get(dims, ())
        if len(index) != 1 or not isinstance(index[0], Expression):
            continue
        largest, place = _largest(primitive, index[0], steps, sides)
        if largest >= SIDE and largest + 1 not in counts:
            names = primitive.side_names
            instead = f"write {dims}=({index[0]}) % {names[0]}" if len(names) == 1 else (
                f"wrap it with % of the side that {dims} is split by")  # fmt: skip
            return (
                f"{type(primitive).__name__}.{phase}: {dims}={index[0]} reaches {largest} on side "
                f"{SIDE}, at {place}: {instead}"
            )
    return None


def _largest(
    primitive: Primitive, index: Expression, steps: int, sides: dict[str, int]
) -> tuple[int, str]:
    """The largest value of an index, and where it first has it; -1 where it has no meaning."""
    best, where = -1, ""
    axes = primitive.axis_sides
    for *device, t in product(*(range(sides[side]) for side in axes.values()), range(steps)):
        here = {**dict(zip(axes, device, strict=True)), "t": t}
        try:
            value = evaluate(index, {**here, **sides})
        except (PrimitiveError, ZeroDivisionError):
            continue
        if value > best:
            best, where = value, ", ".join(f"{name}={position}" for name, position in here.items())
    return best, where
