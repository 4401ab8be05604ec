"""The program that averages a gradient over groups of ranks with different rows."""

from __future__ import annotations

from fractions import Fraction

from primepar.operators.builder import IterationSpace, ProgramBuilder
from primepar.schedule.layout import Layout
from primepar.schedule.program import Free, Program


def lower_row_average(
    layout: Layout, size: int
) -> tuple[Program, tuple[str, ...], tuple[str, ...]]:
    """Return the program, and the names of each rank's block before and after it.

    Activations are in `layout` over (rows, columns), one block a rank. A rank is given the gradient
    of `size` elements that its rows make, `[1, size]`. It ends with the average over the slices of
    rows, for its columns, in the dtype of sums.
    """
    rows, parts = layout.grid
    builder = ProgramBuilder(layout.ranks)
    space = IterationSpace(layout, {"M": rows, "C": parts * size})
    gradient = builder.given("gradient", space, "M", "C")
    share = str(Fraction(1, rows))
    average = builder.compute(
        "gradient", "workers.average", space, [gradient], "mean[C]", wide=True, scale=share
    )
    builder.all_reduce(average, layout.peers_along(0))
    for rank, nodes in enumerate(builder.programs):
        nodes.append(Free(gradient.blocks(rank)[0]))
    builder.end_with(average)
    before, after = (
        tuple(view.blocks(rank)[0] for rank in range(layout.ranks)) for view in (gradient, average)
    )
    return builder.program(), before, after
