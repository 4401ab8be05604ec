"""The scales of instructions as numbers for torch.

Every instruction with a scale calls its `Factor` once per run, so that a run can be observed.
"""

from __future__ import annotations

from collections.abc import Callable

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
