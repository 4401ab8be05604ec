"""Lowers consecutive operators of a model to two programs: forward and backward, without the rest.

An example is the MLP of a block: fc1, activation, fc2. Its input and the gradient of its output are
given, in the layouts that they have in a whole step. There are two programs because the output is
there before its gradient is, as in a whole step: no pass can move a reduction from forward into
backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from primepar.errors import PlanError
from primepar.models.graph import Operator
from primepar.operators.builder import ProgramBuilder, View
from primepar.operators.step_context import StepContext
from primepar.operators.sweeps import backward_sweep, fan_in, forward_sweep, lowerings, ways_of
from primepar.passes import PASSES, apply_in_turn
from primepar.plan.plan import Plan
from primepar.schedule.effects import effects, frees
from primepar.schedule.layout import Layout
from primepar.schedule.program import Program

INPUT, OUTPUT_GRADIENT = "x", "dy"
"""The tensors that forward and backward of a part are given."""


class StepPart(NamedTuple):
    """The programs of a part of a step, and the names of what they make.

    Forward is given `x` and the parameters. It ends with the output `y`, and with the blocks that
    are `kept` on every rank for backward, the parameters among them. Backward is given these and
    `dy`. It ends with the parameters, the gradient `dx` of `x`, and `NAME.grad` for every
    parameter. `source` and `target` are the layouts of x and y over (M, K): rows and features.
    """

    forward: Program
    backward: Program
    kept: tuple[tuple[str, ...], ...]
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
    before, after = step.ends(source.name).output, step.ends(last.name).output
    x = builder.given(INPUT, step.space(before, source.K), "M", "K")
    lowered, ways = lowerings(step, operators), ways_of(plan)
    y = forward_sweep(step, lowered, ways, {source.name: x})
    forward = _so_far(builder)
    dy = builder.given(OUTPUT_GRADIENT, step.space(after, last.K), "M", "K")
    gradients: dict[str, list[View]] = {operator.name: [] for operator in (source, *operators)}
    gradients[last.name].append(dy)
    backward_sweep(step, lowered, ways, gradients)
    dx = fan_in(step, source, gradients[source.name])
    assert dx is not None
    for view in (*step.parameters.values(), *step.gradients.values(), dx):
        builder.end_with(view)
    whole = builder.program()
    kept = tuple(_kept(forward, whole, rank) for rank in range(plan.ranks))
    ahead, back = apply_in_turn(
        _first_part(forward, kept, y), _last_part(forward, whole, kept, dy), passes
    )
    return StepPart(ahead, back, kept, y.name, dx.name, step.parameters, before, after)


def _so_far(builder: ProgramBuilder) -> Program:
    """Return the program so far, with tables that do not grow with those of the builder."""
    program = builder.program()
    tables = (program.grid, program.phases, program.tensors)
    grid, phases, tensors = (dict(table or {}) for table in tables)
    return replace(program, grid=grid, phases=phases, tensors=tensors)


def _kept(forward: Program, whole: Program, rank: int) -> tuple[str, ...]:
    """Return the blocks of a rank after forward that backward uses, or that the whole ends with."""
    here = dict.fromkeys((forward.initial or ())[rank])
    for node in forward.programs[rank]:
        here |= dict.fromkeys(effects(node, rank).writes)
        for name in frees(node):
            del here[name]
    rest = whole.programs[rank][len(forward.programs[rank]) :]
    used = {name for node in rest for name in effects(node, rank).reads}
    return tuple(name for name in here if name in used.union((whole.final or ())[rank]))


def _first_part(forward: Program, kept: tuple[tuple[str, ...], ...], y: View) -> Program:
    final = (dict.fromkeys((*y.blocks(rank), *names)) for rank, names in enumerate(kept))
    return replace(forward, final=tuple(map(tuple, final)))


def _last_part(
    forward: Program, whole: Program, kept: tuple[tuple[str, ...], ...], dy: View
) -> Program:
    """Return backward alone, without the phases of forward."""
    known = forward.phases or {}
    grid, phases = (
        {name: entry for name, entry in (table or {}).items() if name not in known}
        for table in (whole.grid, whole.phases)
    )
    lists = zip(whole.programs, forward.programs, strict=True)
    return replace(
        whole,
        programs=tuple(nodes[len(done) :] for nodes, done in lists),
        initial=tuple((*names, *dy.blocks(rank)) for rank, names in enumerate(kept)),
        grid=grid,
        phases=phases,
    )


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
