"""Computes phases for the emulator: by kernels on real numbers, or by exact stand-ins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from primepar.errors import ProgramError, WrongDataError
from primepar.operators import StepInputs, StepSettings, site_of
from primepar.reference.emulator.expected_contents import Contents
from primepar.reference.emulator.provenance import Array, Block
from primepar.reference.emulator.surrogate import PRIME, modular, stand_in
from primepar.reference.kernels import KERNELS, SUMS
from primepar.reference.kernels.linear import multiply
from primepar.schedule.meaning import Phase
from primepar.schedule.program import Compute
from primepar.schedule.signature import Scale


class Arithmetic:
    """Computes the program of one linear operator, or with `settings` a training step, by kernels.

    Without settings each phase of a program with signatures or scales has a stand-in, in integers
    modulo a prime. Raises `ProgramError` if a phase names an unknown kernel.
    """

    def __init__(
        self, contents: Contents, settings: StepSettings | None, inputs: StepInputs | None
    ) -> None:
        self.contents, self.settings, self.inputs = contents, settings, inputs or StepInputs()
        self.exact = settings is None and contents.exact
        if settings is not None:
            self._check_kernels()

    def _check_kernels(self) -> None:
        for phase in self.contents.meaning.phases.values():
            if phase.kernel not in KERNELS:
                raise ProgramError(
                    f"phase {phase.name}: expected a kernel out of {', '.join(KERNELS)}, got "
                    f"{phase.kernel or 'none'}: name one in its signature, or leave out the "
                    "settings for stand-ins"
                )

    def dtype(self, memories: Iterable[Mapping[str, Array]]) -> np.dtype[np.generic]:
        """Return the dtype of a block of zeros: that of the real numbers in the memories."""
        if self.exact:
            return np.dtype(np.int64)
        arrays = (np.asarray(array) for memory in memories for array in memory.values())
        real = {array.dtype for array in arrays if array.dtype.kind == "f"}
        return np.result_type(*real) if real else np.dtype(np.float64)

    def scaled(self, block: Block, scale: Scale) -> Block:
        """Return a block times a coefficient; modulo a prime where stand-ins compute."""
        if scale == 1:
            return block
        terms = {term: times * scale for term, times in block.terms.items()}
        if self.exact:
            return Block(np.mod(block.array, PRIME) * modular(scale) % PRIME, terms)
        return Block(np.asarray(block.array * float(scale)), terms)

    def stored_sum(self, makers: Sequence[Phase | None], arrays: Sequence[Array]) -> Array | None:
        """Return the sum of blocks whose kernel stores sums in another way, None for any other."""
        add = next((SUMS.get(str(phase.kernel)) for phase in makers if phase is not None), None)
        return None if add is None or self.settings is None else add(self.settings, *arrays)

    def made(self, node: Compute, arrays: Sequence[Array]) -> Array:
        """Return the result of a sub-operator on its operands.

        Raises `ValueError` if their shapes do not fit. Raises `WrongDataError` if its kernel
        returns another shape than that of its output, or no real numbers.
        """
        phase = self.contents.meaning.phases[str(node.phase)]
        shape = self.contents.shape(phase.writes.block(node.sub_operator or {}))
        if self.exact:
            return stand_in(phase, arrays, shape)
        if self.settings is None:
            return multiply(phase, arrays)
        site = site_of(self.contents.meaning, node, self.settings)
        array = np.asarray(KERNELS[str(phase.kernel)](site, self.inputs, *arrays))
        if array.dtype.kind != "f" or shape not in (None, array.shape):
            expected = "a real block" if shape is None else f"a real block of shape {shape}"
            raise WrongDataError(
                f"expected {expected} from kernel {phase.kernel}, got {array.dtype} of shape "
                f"{array.shape}: see that the program is of this model, batch and positions"
            )
        return array
