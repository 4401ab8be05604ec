"""Random layouts for hypothesis: one block on every device, or a product of sets of slices."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from primepar.schedule import Layout

Parts = list[tuple[int, ...]]


@st.composite
def layouts(draw: st.DrawFn, ranks: int, *, apart: bool = False) -> Layout:
    """Draw a layout of two dims; where devices are left over, they hold copies.

    With `apart` a device may hold several slices of a dim, and others between them.
    """
    most = range(1, 7)
    fitting = [counts for counts in product(most, most) if counts[0] * counts[1] <= ranks]
    parts = [draw(_parts(count, apart)) for count in draw(st.sampled_from(fitting))]
    blocks = list(product(*parts))
    more = draw(st.lists(st.sampled_from(blocks), min_size=ranks - len(blocks), max_size=ranks))
    held = draw(st.permutations([*blocks, *more[: ranks - len(blocks)]]))
    grid = (sum(map(len, parts[0])), sum(map(len, parts[1])))
    return Layout(grid, tuple(tuple(product(*sets)) for sets in held))


@st.composite
def _parts(draw: st.DrawFn, count: int, apart: bool) -> Parts:
    """Draw `count` sets that each slice of a dim is in one of."""
    slices = draw(st.integers(count, 6)) if apart else count
    order = draw(st.permutations(range(slices)))
    return [tuple(sorted(order[first::count])) for first in range(count)]


@st.composite
def pairs(draw: st.DrawFn, ranks: int = 12, *, apart: bool = False) -> tuple[Layout, Layout]:
    """Draw two layouts of one mesh of up to `ranks` devices."""
    count = draw(st.integers(1, ranks))
    return draw(layouts(count, apart=apart)), draw(layouts(count, apart=apart))
