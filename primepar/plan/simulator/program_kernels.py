"""Counts the kernels of a training step in the program of one device, and the bytes they pass.

The step of one layer is lowered, and its instructions are counted: `norm1` in bfloat16 is a kernel
that reads x and writes x / |x| in float32, and one that reads that and writes the output.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from primepar.models.config import ModelConfig
from primepar.models.graph import operators
from primepar.operators.step import lower_step
from primepar.plan.cost.kernels import Passes, ProgramKernels
from primepar.plan.plan import Plan
from primepar.plan.simulator.account import step_options
from primepar.plan.simulator.events import BlockBytes
from primepar.schedule.program import Compute


@lru_cache(maxsize=16)
def kernels(model: ModelConfig, positions: int, dtype: str) -> ProgramKernels:
    """The kernels of a step of sequences of this many tokens."""
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
