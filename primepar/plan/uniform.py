"""The plan with one sequence for all linear operators, and one layout for activations.

Every operator other than the linear ones has the layout of a linear operator's output O.
"""

from __future__ import annotations

from math import lcm

from primepar.errors import ConfigError, SequenceError
from primepar.models import ModelConfig, operators
from primepar.partition.by_dimension import ByInput, Replicated
from primepar.plan.operator_layouts import ends_of
from primepar.plan.plan import Plan
from primepar.schedule import Element, Sequence


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
