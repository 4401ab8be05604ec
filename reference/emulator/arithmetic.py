"""How the emulator computes phases: by kernels on real numbers, or by exact stand-ins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from primepar.errors import ProgramError, WrongDataError
from primepar.operators import StepInputs, StepSettings, site_of
from primepar.reference.emulator.expected_contents import Contents
from primepar.reference.emulator.provenance import Array
from primepar.reference.emulator.surrogate import stand_in
from primepar.reference.kernels import KERNELS
from primepar.reference.kernels.linear import multiply
from primepar.schedule.program import Compute


class Arithmetic:
    """Kernels for the program of one linear operator, and with the `settings` of a step for one.

    Without settings each phase of a program with signatures has a stand-in, in integers modulo a
    prime. Raises `ProgramError` if a phase is to be computed by a kernel that there is not.
    """

    def __init__(
        self, contents: Contents, settings: StepSettings | None, inputs: StepInputs | None
    ) -> None:
        self.contents, self.settings, self.inputs = contents, settings, inputs or StepInputs()
        self.exact = settings is None and bool(contents.program.phases)
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
        """Type of a block of zeros: that of the real numbers in some memories."""
        if self.exact:
            return np.dtype(np.int64)
        found = {array.dtype for memory in memories for array in map(np.asarray, memory.values())}
        real = [each for each in found if each.kind == "f"]
        return np.result_type(*real) if real else np.dtype(np.float64)

    def made(self, node: Compute, arrays: Sequence[Array]) -> Array:
        """What a sub-operator makes of its operands.

        Raises `ValueError` if these do not fit, and `WrongDataError` if its kernel makes a block
        of another shape than it writes, or of other than real numbers.
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
