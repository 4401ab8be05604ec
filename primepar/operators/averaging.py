"""Programs of averages: of the parameters of replicas, and of a gradient over rows.

Local SGD averages parameters. Between averages every replica has parameters of its own,
`<name>.replicas[k,...]` on replica k. The program makes the mean of them, under the parameter's own
name, on every rank that has a block of it: ranks at the same place in their replicas all-reduce
their blocks, times 1/replicas.
"""

from __future__ import annotations

from fractions import Fraction

from primepar.operators.builder import IterationSpace, ProgramBuilder, View
from primepar.operators.step import parameter_views
from primepar.passes import apply
from primepar.plan.replicas import Replicas
from primepar.schedule.layout import Layout
from primepar.schedule.program import Free, Program

REPLICA, DIMS = "W", ("X", "Y", "Z")
"""The dim that numbers replicas, and those of parameters."""


def lower_average(replicas: Replicas, wide: bool = False) -> Program:
    """Return the program that replaces every parameter by the mean over the replicas.

    Each rank starts with its blocks of its replica's parameters and ends with those of the means,
    in the same layout. The means are of sums' precision, float32 at least; with `wide` so are the
    given blocks, which are the copies of the parameters that are updated.
    """
    plan = replicas.whole
    builder, size = ProgramBuilder(plan.ranks), plan.ranks // replicas.count
    groups = tuple(tuple(range(place, plan.ranks, size)) for place in range(size))
    for name, view in parameter_views(plan).items():
        mean = _mean(builder, name, view, replicas.count, wide)
        builder.all_reduce(mean, groups)
        builder.end_with(mean)
    return apply(builder.program())


def replica_block(name: str, index: str, replica: int) -> str:
    """Return the name of a replica's block of a parameter; `index` is the block's own, `[0,1]`."""
    return f"{name}.replicas[{replica},{index.removeprefix('[')}"


def _mean(builder: ProgramBuilder, name: str, view: View, count: int, wide: bool) -> View:
    """Lower every rank's part of the mean of one parameter: its own block, times 1/count."""
    dims, size = DIMS[: len(view.cuts)], builder.ranks // count
    grid = tuple(len(line) - 1 for line in view.cuts)
    held = tuple(
        tuple((rank // size, *index) for index in indices) for rank, indices in enumerate(view.held)
    )
    sizes = dict(zip(dims, (line[-1] for line in view.cuts), strict=True))
    space = IterationSpace(Layout((count, *grid), held), {REPLICA: count, **sizes})
    blocks = builder.given(f"{name}.replicas", space, REPLICA, *dims, wide=wide)
    writes, scale = f"{name}[{','.join(dims)}]", str(Fraction(1, count))
    return builder.compute(name, "workers.average", space, [blocks], writes, wide=True, scale=scale)


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
