"""Which blocks are joined later, so that they are made side by side, where the whole will be."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from primepar.distributed.runtime.shapes import Shapes
from primepar.schedule.program import (
    AllReduce,
    Compute,
    Cut,
    Instruction,
    Join,
    Reduce,
    ReduceScatter,
)
from primepar.schedule.program_uses import frees, writes


class LaterJoin(NamedTuple):
    """The join of a block: its place in the list, and the whole that it makes."""

    place: int
    whole: str


LaterJoins = dict[tuple[int, str], LaterJoin]
"""By place and name of what makes a part."""


def later_joins(
    instructions: tuple[Instruction, ...], rank: int, given: Collection[str], shapes: Shapes
) -> LaterJoins:
    """Joins of which every part is written to a buffer: computed by a product, or received.

    What a kernel makes is a tensor of its own, and what is `given` has its place already.
    """
    found: LaterJoins = {}
    pending: dict[str, LaterJoin] = {}
    lost: set[LaterJoin] = set()
    for place in reversed(range(len(instructions))):
        node = instructions[place]
        made = [name for name in writes(node, rank) if name in pending]
        elsewhere = isinstance(node, Cut | Join | ReduceScatter) or not _in_buffers(node, shapes)
        ended = [*frees(node), *(made if elsewhere else ())]
        if ended:
            lost.update(pending.pop(name) for name in ended if name in pending)
        else:
            found.update({(place, name): pending[name] for name in made})
        if isinstance(node, Join):
            lost.update(pending[name] for name in node.blocks if name in pending)
            pending.update(dict.fromkeys(node.blocks, LaterJoin(place, node.block)))
        elif not isinstance(node, Compute | AllReduce | Reduce):
            for name in made:
                pending.pop(name, None)
    lost.update(join for name, join in pending.items() if name in given)
    return {where: join for where, join in found.items() if join not in lost}


def _in_buffers(node: Instruction, shapes: Shapes) -> bool:
    """Whether an instruction writes to buffers, not to tensors that a kernel makes."""
    if not isinstance(node, Compute) or node.phase is None:
        return True
    return shapes.is_product(node.phase)
