"""The byte-level GPT of `primepar.models` under one sequence, with one layout for activations.

Every operator other than the linear ones has the layout of a linear operator's output O.
"""

from __future__ import annotations

from math import lcm

from primepar.distributed.modules.model import PartitionedModel
from primepar.distributed.runtime.mesh import Mesh
from primepar.errors import ConfigError, SequenceError
from primepar.models import ModelConfig, operators
from primepar.partition.by_dimension import ByInput, Replicated
from primepar.plan import Plan
from primepar.plan.operator_layouts import ends_of
from primepar.schedule import Element, Sequence


class GPT(PartitionedModel):
    """A GPT on a mesh; its parameters are this rank's blocks, with their names in the config.

    Every rank constructs it and calls it in the same order. Raises `ConfigError` if the number of
    slices does not divide a size of the config, `SequenceError` or `PlanError` if the sequence
    cannot run it.
    """

    def __init__(self, config: ModelConfig, mesh: Mesh, seed: int = 0) -> None:
        super().__init__(uniform_plan(config, mesh.sequence), mesh, seed)


def uniform_plan(config: ModelConfig, sequence: Sequence) -> Plan:
    """Return the plan with one sequence for all linear operators.

    The other operators have the layout of O, and the vocabulary is padded. Raises `ConfigError`
    unless heads and hidden are multiples of their numbers of slices. Raises `SequenceError` if a
    device holds several blocks of O, `PlanError` for any other sequence that cannot run the model.
    """
    output = Sequence(
        tuple(
            Element(Replicated(), element.sides)
            if isinstance(element.primitive, ByInput)
            else element
            for element in sequence.elements
        )
    )
    if "B" not in sequence.grid:
        _check(config, sequence)
    sequences = {
        operator.name: str(sequence if operator.kind == "linear" else output)
        for operator in operators(config)
    }
    return Plan(model=config, ranks=sequence.ranks, sequences=sequences)


def _check(config: ModelConfig, sequence: Sequence) -> None:
    output = ends_of("linear", str(sequence)).output
    most = max(map(len, output.held))
    if most > 1:
        raise SequenceError(
            f"sequence {str(sequence)!r}: expected one block of O on every device, the layout of "
            f"all other operators, got {most}: put Ks, Ns, C, Cr or D last, or write a plan, "
            "in which a linear operator may leave several"
        )
    columns, inputs = output.grid[1], sequence.grid["N"]
    needed = {
        "hidden": (config.hidden, lcm(columns, inputs)),
        "heads": (config.heads, columns),
    }
    for name, (size, slices) in needed.items():
        if size % slices:
            raise ConfigError(
                f"{name}: expected a multiple of {slices} for sequence {str(sequence)!r}, "
                f"got {size}: take {-(-size // slices) * slices}, or another sequence"
            )
