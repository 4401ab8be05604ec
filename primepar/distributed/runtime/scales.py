"""The scales of instructions as numbers for torch, and their place in collectives.

Every instruction with a scale calls its `Factor` once per run, so that a run can be observed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from primepar.distributed.runtime.messages import Blocks, Pending, Start, Waitable
from primepar.schedule.program import Collective, Compute

Factor = Callable[[], float]
"""Returns the scale of one instruction."""


def factor_of(node: Compute | Collective) -> Factor:
    """Return the function that returns an instruction's scale as a number."""
    scale = float(node.scale_value)
    return lambda: scale


def is_scaled(node: Compute | Collective, rank: int) -> bool:
    """Return whether a rank multiplies by a scale: in a reduce only the root does."""
    return getattr(node, "scale", "1") != "1" and getattr(node, "root", rank) == rank


def scaled(start: Start, names: Sequence[str], factor: Factor) -> Start:
    """Return the start of a reduction whose result is multiplied in place when it is done."""

    def begin(blocks: Blocks) -> Waitable:
        into = [blocks[name] for name in names]
        work = start(blocks)

        def multiply() -> None:
            scale = factor()
            for block in into:
                block.mul_(scale)

        return Pending([work], multiply)

    return begin
