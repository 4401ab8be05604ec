"""Finds blocks that are joined later, so that they can be made in place, in one buffer.

The list is read backwards. A `Join` marks its parts as pending; the instruction that makes a
pending part gets the join as its target. If one part cannot be written into a buffer (a kernel's
result, a given block), the join is dropped for all its parts, and they are copied instead. So it is
for parts that are not whole rows from an aligned byte: a BLAS chooses its order of summation by
strides and alignment, and every compute gets its operands in one layout. Example:
`recv a; recv b; join (a, b) -> c` makes both receives write into the memory of `c`.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import NamedTuple

from primepar.distributed.runtime.memory import ALIGNMENT
from primepar.distributed.runtime.shapes import Shapes
from primepar.schedule.effects import effects, frees
from primepar.schedule.program import (
    AllReduce,
    Compute,
    Cut,
    Instruction,
    Join,
    Reduce,
    ReduceScatter,
)


class LaterJoin(NamedTuple):
    """The join of a block: its position in the list, and the joined block."""

    place: int
    whole: str


LaterJoins = dict[tuple[int, str], LaterJoin]
"""(position of the instruction that makes a part, name of the part) -> its join."""


def later_joins(
    instructions: tuple[Instruction, ...],
    rank: int,
    given: Collection[str],
    shapes: Shapes,
    itemsize: int,
) -> LaterJoins:
    """Return the joins whose parts are all written into buffers, by a product or a receive.

    A kernel's result is a tensor of its own, and `given` blocks have their memory already.
    `itemsize` is that of the narrowest dtype, in bytes.
    """
    joins: LaterJoins = {}
    pending: dict[str, LaterJoin] = {}
    lost: set[LaterJoin] = set()
    for place in reversed(range(len(instructions))):
        node = instructions[place]
        made = [name for name in effects(node, rank).writes if name in pending]
        elsewhere = isinstance(node, Cut | Join | ReduceScatter) or not _in_buffers(node, shapes)
        ended = [*frees(node), *(made if elsewhere else ())]
        if ended:
            lost.update(pending.pop(name) for name in ended if name in pending)
        else:
            joins.update({(place, name): pending[name] for name in made})
        if isinstance(node, Join):
            lost.update(pending[name] for name in node.blocks if name in pending)
            join = LaterJoin(place, node.block)
            pending.update(dict.fromkeys(node.blocks, join))
            if not all(are_rows(name, node.block, shapes, itemsize) for name in node.blocks):
                lost.add(join)
        elif not isinstance(node, Compute | AllReduce | Reduce):
            for name in made:
                pending.pop(name, None)
    lost.update(join for name, join in pending.items() if name in given)
    return {where: join for where, join in joins.items() if join not in lost}


def are_rows(part: str, whole: str, shapes: Shapes, itemsize: int) -> bool:
    """Return whether a part is whole rows of a block of its dtype, from an aligned byte."""
    rows, *others = zip(shapes.inside(part, whole), shapes.shape(whole), strict=True)
    width = prod(size for _, size in others)
    return (
        shapes.wide(part) == shapes.wide(whole)
        and all(line == slice(0, size) for line, size in others)
        and rows[0].start * width * itemsize % ALIGNMENT == 0
    )


def _in_buffers(node: Instruction, shapes: Shapes) -> bool:
    """Return whether an instruction writes to buffers, and not to a kernel's new tensor."""
    if not isinstance(node, Compute) or node.phase is None:
        return True
    return shapes.is_product(node.phase)
