"""Lowers consecutive operators of a model to one program: forward and backward, without the rest.

An example is the MLP of a block: fc1, activation, fc2. Its input and the gradient of its output are
given, in the layouts that they have in a whole step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from primepar.errors import PlanError
from primepar.models.graph import Operator
from primepar.operators.builder import ProgramBuilder, View
from primepar.operators.step_context import StepContext
from primepar.operators.sweeps import backward_sweep, fan_in, forward_sweep, lowerings, ways_of
from primepar.passes import PASSES, apply
from primepar.plan.plan import Plan
from primepar.schedule.layout import Layout
from primepar.schedule.program import Program

INPUT, OUTPUT_GRADIENT = "x", "dy"
"""The tensors that a program of a part is given, besides the parameters."""


class StepPart(NamedTuple):
    """The program of a part of a step, and the names of what it makes.

    It is given `x`, `dy` and the parameters. It ends with the parameters, the output `y`, the
    gradient `dx` of `x`, and `NAME.grad` for every parameter. `source` and `target` are the layouts
    of x and y over (M, K): rows and features.
    """

    program: Program
    y: str
    dx: str
    parameters: dict[str, View]
    source: Layout
    target: Layout


def lower_part(
    plan: Plan,
    names: Iterable[str],
    batch: int,
    positions: int,
    passes: Iterable[str] = tuple(PASSES),
) -> StepPart:
    """Lower some operators of a plan, in the order of execution.

    The first takes the output of one other operator, and no other one is needed. Raises `PlanError`
    if that is not so, for a plan with a pipeline, or for a batch that the plan does not divide.
    """
    plan.check_batch(batch, positions)
    operators = tuple(plan.operator(name) for name in names)
    source = _source(plan, operators)
    builder = ProgramBuilder(plan.ranks)
    step = StepContext(plan, builder, batch, positions)
    last = operators[-1]
    x, dy = (
        builder.given(name, step.space(step.ends(end.name).output, end.K), "M", "K")
        for name, end in ((INPUT, source), (OUTPUT_GRADIENT, last))
    )
    parts, ways = lowerings(step, operators), ways_of(plan)
    y = forward_sweep(step, parts, ways, {source.name: x})
    gradients: dict[str, list[View]] = {operator.name: [] for operator in (source, *operators)}
    gradients[last.name].append(dy)
    backward_sweep(step, parts, ways, gradients)
    dx = fan_in(step, source, gradients[source.name])
    assert dx is not None
    for view in (*step.parameters.values(), *step.gradients.values(), y, dx):
        builder.end_with(view)
    program = apply(builder.program(), passes)
    layouts = step.ends(source.name).output, step.ends(last.name).output
    return StepPart(program, y.name, dx.name, step.parameters, *layouts)


def _source(plan: Plan, operators: tuple[Operator, ...]) -> Operator:
    """Return the one operator outside whose output a part takes."""
    known = {operator.name for operator in operators}
    outside = {name for operator in operators for name in operator.inputs} - known
    ends = operators and operators[0].inputs and operators[-1].kind != "loss"
    if plan.pipeline is not None or len(outside) != 1 or not ends:
        taken = ", ".join(sorted(outside)) or "none"
        raise PlanError(
            "part: expected operators between the embedding and the loss that take one input from "
            f"outside, without a pipeline, got inputs {taken}: name those of a block in order"
        )
    return plan.operator(outside.pop())
