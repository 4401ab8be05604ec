"""What the kernels of a step's program pass through memory, counted in the program of one device.

The cost of an operator without products is what its kernels read and write. There is no formula of
these here: the step of one layer on one device is lowered, and its instructions are counted. On a
device that has a share of rows and columns, each kernel reads and writes that share. Example, of a
norm in bfloat16: one kernel reads x and writes x / |x| in float32, 6 bytes for an element, and the
next one reads that and writes the output, as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from primepar.models.config import ModelConfig
from primepar.models.graph import operators


class Passes(NamedTuple):
    """ProgramKernels, and the bytes that they read and write."""

    starts: int = 0
    bytes: float = 0.0

    def and_of(self, size: float) -> Passes:
        """These and one kernel more."""
        return Passes(self.starts + 1, self.bytes + size)


@dataclass(frozen=True)
class ProgramKernels:
    """ProgramKernels of a step of one sequence of a model of one layer, in one data type.

    `forward` and `backward` are by operator, without its layer. `update` is that of all
    `parameters` in all `tensors`, with the squares for the norm of the gradient.
    """

    forward: Mapping[str, Passes]
    backward: Mapping[str, Passes]
    update: Passes
    parameters: int
    tensors: int


@lru_cache(maxsize=16)
def kernels(model: ModelConfig, positions: int, dtype: str) -> ProgramKernels:
    """The kernels of a step of sequences of this many tokens."""
    from primepar.operators.step import lower_step
    from primepar.plan.accounting.account import step_options
    from primepar.plan.accounting.events import BlockBytes
    from primepar.plan.plan import Plan
    from primepar.schedule.program import Compute

    one = replace(model, layers=1, context=positions)
    known = operators(one)
    plan = Plan(model=one, ranks=1, sequences={operator.name: "" for operator in known})
    options = step_options(dtype)
    program = lower_step(plan, 1, positions, options=options, passes=("merge-products",))
    size, names = BlockBytes(program, dtype), sorted((known.name for known in known), key=len)
    forward, backward, update = dict[str, Passes](), dict[str, Passes](), Passes()
    for node in program.programs[0]:
        if not isinstance(node, Compute) or node.phase is None:
            continue
        touched = sum(map(size, (*node.reads, node.accumulates)))
        if node.phase.endswith(".update") or node.phase.startswith("gradient."):
            update = update.and_of(touched)
            continue
        name = [name for name in names if node.phase.startswith(f"{name}.")][-1]
        way = backward if _is_backward(node.phase.removeprefix(f"{name}.")) else forward
        short = name.rpartition(".")[2] if name.startswith("blocks.") else name
        way[short] = way.get(short, Passes()).and_of(touched)
    return ProgramKernels(forward, backward, update, one.parameters, len(one.parameter_shapes))


def _is_backward(phase: str) -> bool:
    return any(word in phase for word in ("backward", "gradient", "fan-in"))
