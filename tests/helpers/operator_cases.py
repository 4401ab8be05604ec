"""One operator of a plan alone on emulated devices, as the step lowers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

import msgspec
from partitioned_cases import DRAW

from primepar.operators import StepInputs, StepSettings
from primepar.operators.builder import ProgramBuilder, View
from primepar.operators.step_context import StepContext
from primepar.operators.sweeps import LOWERINGS
from primepar.passes import free_early
from primepar.plan import Plan, ends
from primepar.reference import emulate
from primepar.reference.emulator.contents import Array
from primepar.reference.emulator.tensors import gather_tensors, spread_tensors
from primepar.reference.kernels import StepKernels
from primepar.schedule import Program
from primepar.schedule.meaning import Meaning


class Ran(NamedTuple):
    """Output and gradient of the input, and what every rank sent."""

    y: Array
    dx: Array | None
    sent: list[Fraction]


class Alone:
    """An operator on emulated devices: forward of `x`, whole, and backward of `dy`."""

    def __init__(self, plan: Plan, name: str, batch: int, positions: int) -> None:
        self.plan, self.operator = plan, plan.operator(name)
        self.batch, self.positions = batch, positions

    def run(
        self,
        given: Mapping[str, Array],
        backward: bool = True,
        change: Callable[[Program], Program] = lambda program: program,
    ) -> Ran:
        """Emulate forward, and backward too, in a program that may be changed."""
        program, y, dx = self._lowered(backward)
        meaning = Meaning(change(program))
        settings = StepSettings(self.plan.model, self.batch, self.positions)
        kernels = StepKernels(settings, StepInputs(DRAW))
        run = emulate(meaning.program, spread_tensors(meaning, given), kernels=kernels)
        shapes = {meaning.real(view.name): tuple(line[-1] for line in view.cuts)
                  for view in (y, *dx)}  # fmt: skip
        made = list(gather_tensors(meaning, run.memories, shapes).values())
        return Ran(made[0], made[1] if dx else None, run.sent)

    def _lowered(self, backward: bool) -> tuple[Program, View, tuple[View, ...]]:
        """The program, its output, and the gradients of its inputs."""
        builder = ProgramBuilder(self.plan.ranks)
        step = StepContext(self.plan, builder, self.batch, self.positions)
        part = LOWERINGS[self.operator.kind](step, self.operator)
        layouts = ends(self.plan, self.operator.name)
        inputs = [
            builder.given("x", step.space(layouts.input, self.operator.N), "M", "K")
            for _ in self.operator.inputs
        ]
        y = part.forward(*inputs)
        dx: tuple[View, ...] = ()
        if backward:
            dy = builder.given("dy", step.space(layouts.output, self.operator.K), "M", "K")
            dx = part.backward(dy)
        for view in (y, *dx, *step.gradients.values()):
            builder.end_with(view)
        return free_early(builder.program()), y, dx


def without(kind: type) -> Callable[[Program], Program]:
    """A program that has lost its instructions of a kind."""

    def change(program: Program) -> Program:
        kept = (tuple(node for node in nodes if not isinstance(node, kind))
                for nodes in program.programs)  # fmt: skip
        return msgspec.structs.replace(program, programs=tuple(kept))

    return change
