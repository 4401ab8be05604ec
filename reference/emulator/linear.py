"""One linear operator, partitioned by a sequence and run on emulated devices."""

from __future__ import annotations

from primepar.errors import ShapeError
from primepar.reference.emulator.executor import Emulation, emulate
from primepar.reference.emulator.tensors import Memory, gather, linear_dims, scatter
from primepar.reference.oracle.linear import Array, LinearStep
from primepar.schedule.lowering import lower
from primepar.schedule.operators import Linear
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence


class EmulatedLinear:
    """A linear operator whose blocks stay on its devices between forward and backward.

    Arguments and results are dense tensors; they have a leading batch dim B exactly if the sequence
    names B. `runs` holds the result of each emulation: sent elements, peak, events.
    """

    def __init__(self, sequence: Sequence, operator: Linear) -> None:
        self.sequence = sequence
        self.operator = operator
        self.grid = sequence.grid
        self.runs: list[Emulation] = []
        self._forward = lower(sequence, operator, ("forward",))
        self._backward = lower(sequence, operator, ("backward", "gradient"))
        self._memories: list[Memory] = [{} for _ in range(sequence.ranks)]

    def forward(self, I_MN: Array, W_NK: Array) -> Array:
        """Return the output O of shape (M, K). Raises `ShapeError` or an `EmulationError`."""
        return self._run(self._forward, {"I": I_MN, "W": W_NK}, ("O",))[0]

    def backward(self, dO_MK: Array) -> tuple[Array, Array]:
        """Return the gradients (dI, dW), from the blocks of I and W that stayed on the devices."""
        dI_MN, dW_NK = self._run(self._backward, {"dO": dO_MK}, ("dI", "dW"))
        return dI_MN, dW_NK

    def _run(
        self, program: Program, tensors: dict[str, Array], outputs: tuple[str, ...]
    ) -> list[Array]:
        for tensor, array in tensors.items():
            self._check_shape(tensor, array)
        names = program.initial or ()
        scattered = scatter(names, self.grid, tensors)
        given = [{**kept, **new} for kept, new in zip(self._memories, scattered, strict=True)]
        run = emulate(program, given, self.sequence)
        self.runs.append(run)
        self._memories = run.memories
        return [gather(tensor, program.final or (), run.memories, self.grid) for tensor in outputs]

    def _check_shape(self, tensor: str, array: Array) -> None:
        dims = linear_dims(tensor, self.grid)
        expected = tuple(self.operator.size(dim) for dim in dims)
        if array.shape != expected:
            raise ShapeError(
                f"{tensor}: expected shape {expected} ({', '.join(dims)}), got {array.shape}"
            )


def emulated_step(
    sequence: Sequence, operator: Linear, I_MN: Array, W_NK: Array, dO_MK: Array
) -> LinearStep:
    """Return O, dI and dW of one training step of a linear operator on emulated devices."""
    linear = EmulatedLinear(sequence, operator)
    O_MK = linear.forward(I_MN, W_NK)
    return LinearStep(O_MK, *linear.backward(dO_MK))
