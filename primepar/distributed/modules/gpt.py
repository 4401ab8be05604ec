"""The byte-level GPT of `primepar.models` under one sequence: every operator lies as O does."""

from __future__ import annotations

from math import lcm

from primepar.distributed.modules.model import PartitionedModel
from primepar.distributed.runtime.mesh import Mesh
from primepar.errors import ConfigError, SequenceError
from primepar.models import GPTConfig, operators
from primepar.partition.by_dimension import ByInput, Replicated
from primepar.plan import Plan
from primepar.plan.operator_layouts import ends_of
from primepar.schedule import Element, Sequence


class GPT(PartitionedModel):
    """A GPT on a mesh; its parameters are this rank's blocks, under their names in the config.

    Every rank makes it, and calls it, alike. Raises `ConfigError` if the sequence's slices do not
    divide the config's sizes, `SequenceError` or `PlanError` if the sequence cannot run it.
    """

    def __init__(self, config: GPTConfig, mesh: Mesh, seed: int = 0) -> None:
        super().__init__(uniform_plan(config, mesh.sequence), mesh, seed)


def uniform_plan(config: GPTConfig, sequence: Sequence) -> Plan:
    """One sequence for all linear operators; what is not linear lies where they leave O.

    Raises `ConfigError` unless heads, hidden and vocabulary are multiples of their slices,
    `SequenceError` where O lies in several blocks, `PlanError` for any other that cannot run it.
    """
    output = Sequence(
        tuple(
            Element(Replicated(), each.sides) if isinstance(each.primitive, ByInput) else each
            for each in sequence.elements
        )
    )
    if "B" not in sequence.grid:
        _check(config, sequence)
    sequences = {
        each.name: str(sequence if each.kind == "linear" else output) for each in operators(config)
    }
    return Plan(model=config, ranks=sequence.ranks, sequences=sequences)


def _check(config: GPTConfig, sequence: Sequence) -> None:
    output = ends_of("linear", str(sequence)).output
    most = max(map(len, output.held))
    if most > 1:
        raise SequenceError(
            f"sequence {str(sequence)!r}: expected one block of O on every device, where all "
            f"other operators lie too, got {most}: put Ks, Ns, C, Cr or D last, or write a plan, "
            "in which a linear operator may leave several"
        )
    columns, inputs = output.grid[1], sequence.grid["N"]
    needed = {
        "hidden": (config.hidden, lcm(columns, inputs)),
        "heads": (config.heads, columns),
        "vocabulary": (config.vocabulary, columns),
    }
    for name, (size, slices) in needed.items():
        if size % slices:
            raise ConfigError(
                f"{name}: expected a multiple of {slices} for sequence {str(sequence)!r}, "
                f"got {size}: take {-(-size // slices) * slices}, or another sequence"
            )
