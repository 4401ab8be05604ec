"""The NumPy kernels: one pure function for each phase of a training step.

A kernel is `kernel(site, inputs, *blocks) -> block`. It is dense: the site gives the extents of its
blocks in the full tensors, and no rank, mesh or message. A sum over columns, rows or the vocabulary
is that of its blocks alone; the program reduces it over the ranks. Operands are never changed.

Legend: M rows, N input and K output columns of a linear operator, H hidden columns, C columns of
qkv, V vocabulary, S positions of keys and values, G key/value groups. A leading `d` marks the
gradient of the loss with respect to that array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from primepar.errors import ProgramError
from primepar.operators import StepInputs, StepSettings, site_of
from primepar.reference.kernels.attention import ATTENTION, added_states
from primepar.reference.kernels.layers import LAYERS, Kernel
from primepar.reference.kernels.update import UPDATE
from primepar.reference.oracle.layers import Array
from primepar.schedule.meaning import Meaning, Phase
from primepar.schedule.program import Compute

__all__ = ["KERNELS", "SUMS", "Kernel", "StepKernels"]

KERNELS: Mapping[str, Kernel] = {**LAYERS, **ATTENTION, **UPDATE}
"""`Signature.kernel` -> the function that computes it."""
SUMS: Mapping[str, Callable[..., Array]] = {"online.part": added_states}
"""Kernel -> how blocks of its terms are added, if not element by element."""


@dataclass(frozen=True)
class StepKernels:
    """The kernels of a training step with its settings and inputs, for `emulate`."""

    settings: StepSettings
    inputs: StepInputs = field(default_factory=StepInputs)

    def check(self, phases: Iterable[Phase]) -> None:
        """Raise `ProgramError` for a phase without a kernel."""
        for phase in phases:
            if phase.kernel not in KERNELS:
                raise ProgramError(
                    f"phase {phase.name}: expected a kernel out of {', '.join(KERNELS)}, got "
                    f"{phase.kernel or 'none'}: name one in its signature, or leave out the "
                    "kernels for stand-ins"
                )

    def made(self, meaning: Meaning, node: Compute, arrays: Sequence[Array]) -> Array:
        """Return the result of a sub-operator; `ValueError` if the shapes do not fit."""
        site = site_of(meaning, node, self.settings)
        return KERNELS[str(site.phase.kernel)](site, self.inputs, *arrays)

    def added(self, phase: Phase, arrays: Sequence[Array]) -> Array | None:
        """Return the sum of blocks of a phase; None if it is element by element."""
        add = SUMS.get(str(phase.kernel))
        return None if add is None else add(self.settings, *arrays)
