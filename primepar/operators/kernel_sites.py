"""What a kernel gets in addition to its blocks: its phase, and the places of its blocks.

A kernel is a dense function `kernel(site, inputs, *blocks)` from blocks to a block. Each numeric
reader has one per kernel name. It depends on no rank, mesh or message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from primepar.errors import ProgramError
from primepar.models.config import ModelConfig
from primepar.models.dropout import Draw
from primepar.models.graph import Operator, operators
from primepar.operators.optimizers import ADAMW, MASTER, AdamWConstants
from primepar.schedule.meaning import Box, Meaning, Phase
from primepar.schedule.program import Compute


@dataclass(frozen=True)
class StepSettings:
    """Settings that all steps of a run share.

    `clip` is the largest norm of the gradient, None for no clipping. SGD does not need `adamw`.
    """

    model: ModelConfig
    batch: int
    positions: int
    clip: float | None = None
    adamw: AdamWConstants = ADAMW

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """The operators of the model by name."""
        return {operator.name: operator for operator in operators(self.model)}


@dataclass(frozen=True)
class StepInputs:
    """Inputs that differ from step to step: dropout masks, learning rate, number, loss scale.

    Without a `draw` there is no dropout. `number` counts updates; the first is 1. With a loss scale
    backward is of the scaled loss, the norm and the updates are of the gradient without it, and
    nothing is updated if the norm is not finite.
    """

    draw: Draw | None = None
    rate: float = 0.0
    number: int = 1
    loss_scale: float | None = None

    @property
    def scale(self) -> float:
        """The scale of the loss; 1 without one."""
        return 1.0 if self.loss_scale is None else self.loss_scale


@dataclass(frozen=True)
class Site:
    """One sub-operator of a phase, and the places of its blocks.

    `name` is that of the operator or parameter. `reads` and `writes` are the boxes of the blocks in
    their full tensors, in elements. `settings` is None in a program of one linear operator.
    """

    phase: Phase
    name: str
    reads: tuple[Box, ...]
    writes: Box
    settings: StepSettings | None = None

    @property
    def step(self) -> StepSettings:
        """The settings. Raises `ProgramError` if there are none."""
        if self.settings is None:
            raise ProgramError(
                f"phase {self.phase.name}: expected the settings of a training step for its "
                f"kernel {self.phase.kernel}, got none: run the program of a plan"
            )
        return self.settings

    @property
    def operator(self) -> Operator:
        """The operator of the phase. Raises `ProgramError` if the model does not have it."""
        if self.name not in self.step.operators:
            raise ProgramError(
                f"phase {self.phase.name}: expected an operator of the model, got {self.name}: "
                "run the program with the settings of the model that its plan is for"
            )
        return self.step.operators[self.name]

    @property
    def decays(self) -> bool:
        """Whether weight decay applies to the parameter: to the weights of linear operators.

        Tables, norms and biases do not decay, as in GPT-3 (Brown et al., 2020) and minGPT.
        """
        parameter = self.name.removesuffix(f".{MASTER}")
        operator = self.step.operators.get(parameter.removesuffix(".weight"))
        return parameter.endswith(".weight") and operator is not None and operator.kind == "linear"


def site_of(meaning: Meaning, node: Compute, settings: StepSettings | None) -> Site:
    """Return the site of a compute; `node.phase` names one of the program's phases."""
    phase = meaning.phases[str(node.phase)]
    slices = node.sub_operator or {}
    *reads, writes = (
        place.box if (place := meaning.place(template.block(slices))) else ()
        for template in (*phase.reads, phase.writes)
    )
    name = phase.name.removesuffix("." + str(phase.kernel).partition(".")[2])
    return Site(phase, name, tuple(reads), writes, settings)
