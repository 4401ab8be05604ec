"""How a training step is lowered, apart from its plan and sizes: one record for all callers."""

from __future__ import annotations

from msgspec import Struct

from primepar.operators.optimizers import ADAMW, AdamWConstants, Optimizer
from primepar.passes import Chunks


class StepOptions(Struct, frozen=True):
    """The options of a training step's program."""

    clip: float | None = None
    """Largest norm of the gradient, to which a larger one is scaled down."""
    optimizer: Optimizer = "adamw"
    chunks: Chunks = None
    """Number of chunks of transfers and of the products next to them, or how it is chosen."""
    device_elements: int | None = None
    """Elements that blocks may take on a device; states are in host memory between their uses."""
    wide_sums: bool = False
    """Whether sums of several sub-operators of a linear operator are wide until they are complete.

    Under half precision they are then added, and sent, in float32, and rounded once."""
    masters: bool = False
    """Whether wide copies of the parameters are updated, and the parameters are these, rounded."""
    skips: bool = False
    """Whether nothing is updated where the norm of the gradient is not finite."""
    adamw: AdamWConstants = ADAMW


DEFAULT = StepOptions()
