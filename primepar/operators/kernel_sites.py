"""What a kernel knows beside its blocks: whose phase it computes, and where its blocks lie.

A kernel is a dense function `kernel(site, inputs, *blocks)` from blocks to a block, one for each
kernel name and numeric reader. It knows no rank, no mesh and no message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from primepar.errors import ProgramError
from primepar.models.config import ModelConfig
from primepar.models.dropout import Draw
from primepar.models.graph import Operator, operators
from primepar.schedule.meaning import Box, Meaning, Phase
from primepar.schedule.program import Compute


@dataclass(frozen=True)
class StepSettings:
    """What all steps of a run have in common; AdamW as GPT-3 was trained.

    `clip` is the largest norm of the gradient, None for any; `decay` is for the weights of linear
    operators alone.
    """

    model: ModelConfig
    batch: int
    positions: int
    clip: float | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    decay: float = 0.1

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """The operators of the model by name."""
        return {each.name: each for each in operators(self.model)}


@dataclass(frozen=True)
class StepInputs:
    """What differs from step to step: the masks of dropout, the rate, and the step's number.

    Without a `draw` nothing is dropped; the first step is number 1.
    """

    draw: Draw | None = None
    rate: float = 0.0
    number: int = 1


@dataclass(frozen=True)
class Site:
    """Where one sub-operator is computed.

    `name` is that of the operator or parameter, `reads` and `writes` are the boxes of the blocks in
    their whole tensors, in elements. `settings` is None in a program of one linear operator.
    """

    phase: Phase
    name: str
    reads: tuple[Box, ...]
    writes: Box
    settings: StepSettings | None = None

    @property
    def step(self) -> StepSettings:
        """The settings. Raises `ProgramError` where there are none."""
        if self.settings is None:
            raise ProgramError(
                f"phase {self.phase.name}: expected the settings of a training step for its "
                f"kernel {self.phase.kernel}, got none: run the program of a plan"
            )
        return self.settings

    @property
    def operator(self) -> Operator:
        """The operator that the phase is of. Raises `ProgramError` where the model has none."""
        if self.name not in self.step.operators:
            raise ProgramError(
                f"phase {self.phase.name}: expected an operator of the model, got {self.name}: "
                "run the program with the settings of the model that its plan is for"
            )
        return self.step.operators[self.name]


def site_of(meaning: Meaning, node: Compute, settings: StepSettings | None) -> Site:
    """Where a compute of a sub-operator takes place. `node.phase` names one of the phases."""
    phase = meaning.phases[str(node.phase)]
    slices = node.sub_operator or {}
    *reads, writes = (
        place.box if (place := meaning.place(template.block(slices))) else ()
        for template in (*phase.reads, phase.writes)
    )
    name = phase.name.removesuffix("." + str(phase.kernel).partition(".")[2])
    return Site(phase, name, tuple(reads), writes, settings)
