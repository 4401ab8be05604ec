"""What the kernels of a step's program pass through memory, for each operator.

The cost of an operator without products is what its kernels read and write. There is no formula of
these: they are counted in a program of one device (`simulator.program_kernels`). On a device that
has a share of rows and columns, each kernel reads and writes that share. Example, of a norm in
bfloat16: one kernel reads x and writes x / |x| in float32, 6 bytes for an element, and the next one
reads that and writes the output, as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Passes(NamedTuple):
    """Kernels, and the bytes that they read and write."""

    starts: int = 0
    bytes: float = 0.0

    def and_of(self, size: float) -> Passes:
        """These and one kernel more."""
        return Passes(self.starts + 1, self.bytes + size)


@dataclass(frozen=True)
class ProgramKernels:
    """Kernels of a step of one sequence of a model of one layer, in one data type.

    `forward` and `backward` are by operator, without its layer. `update` is that of all
    `parameters` in all `tensors`, with the squares for the norm of the gradient.
    """

    forward: Mapping[str, Passes]
    backward: Mapping[str, Passes]
    update: Passes
    parameters: int
    tensors: int
