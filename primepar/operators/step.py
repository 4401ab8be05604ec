"""Lowers a whole training step under a plan to one program: forward, loss, backward and updates.

Operators are lowered in the order of execution, backward in reverse order, and the updates last.
All layouts and communication come from the plan; no partition method is mentioned here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from primepar.errors import PlanError
from primepar.models.graph import Operator
from primepar.operators.builder import ProgramBuilder, View
from primepar.operators.pipeline import PipelineStep
from primepar.operators.shards import own_view
from primepar.operators.step_context import StepContext
from primepar.operators.step_options import DEFAULT, StepOptions
from primepar.operators.sweeps import backward_sweep, forward_sweep, lowerings, ways_of
from primepar.operators.update import lower_gradient_norm, lower_update, shard_gradients
from primepar.passes import PASSES, apply
from primepar.passes.offload import offload, with_copies
from primepar.passes.scatter_sums import scatter_sums
from primepar.plan.plan import Plan
from primepar.schedule.program import Program

Until = Literal["logits", "loss", "gradients", "update"]
"""The last part of a program."""


def lower_step(
    plan: Plan,
    batch: int,
    positions: int,
    until: Until = "update",
    options: StepOptions = DEFAULT,
    passes: Iterable[str] = tuple(PASSES),
) -> Program:
    """Return the program of one training step of `batch` sequences of `positions` tokens.

    Every rank starts with its blocks of the parameters, of their copies if there are masters, and
    of AdamW's moments, with its tokens and its targets. It ends with the new parameters, copies and
    moments in the layouts of the old ones, the loss and the norm of the gradient. A program that
    ends earlier keeps the parameters: `until` "gradients" it ends with these too, until "loss" or
    "logits" with only that. `passes` are applied in the order of `PASSES`; without them no block is
    freed early. Under a limit of device memory no transfer is posted early, as it would keep its
    blocks.
    Raises `PlanError` for a model with parts that are only priced, a batch that the plan does not
    divide, or more positions than the model's context.
    """
    plan.check_runs()
    if not 1 <= positions <= plan.model.context:
        raise PlanError(
            f"positions: expected 1 to context={plan.model.context}, got {positions}: "
            "cut the sequences"
        )
    plan.check_batch(batch, positions)
    builder = ProgramBuilder(plan.ranks)
    trains = until in ("gradients", "update")
    step = StepContext(
        plan, builder, batch, positions, trains, options.optimizer, options.wide_sums,
        options.masters and until == "update", options.skips,
        shards=plan.sharded_optimizer and until == "update",
    )  # fmt: skip
    builder.end_with(
        _lower_until_gradients(step, plan.operators[: -1 if until == "logits" else None])
    )
    if until == "update":
        _update(step, options.clip is not None)
    else:
        for view in (*step.parameters.values(), *step.gradients.values()):
            builder.end_with(view)
    program = scatter_sums(builder.program()) if step.shards else builder.program()
    limit = options.device_elements
    if limit is None:
        return apply(program, passes, options.chunks)
    kept = [name for name in passes if name != "overlap"]
    return offload(with_copies(apply(program, kept, options.chunks)), limit)


def _lower_until_gradients(step: StepContext, known: tuple[Operator, ...]) -> View:
    """Lower forward, and backward if the step trains; returns the output of the last operator."""
    pipeline = step.plan.schedule
    if pipeline is not None:
        return PipelineStep(step.plan, pipeline, step, known).lower()
    parts, ways = lowerings(step, known), ways_of(step.plan)
    output = forward_sweep(step, parts, ways, {})
    if step.trains:
        backward_sweep(step, parts, ways, {operator.name: [] for operator in known})
    return output


def parameter_views(plan: Plan) -> dict[str, View]:
    """Return the views of all parameters of a plan: cuts, and the blocks that every rank holds.

    They do not depend on the batch.
    """
    positions = plan.model.context
    batch = plan.batch or plan.row_cuts.smallest_batch(positions)
    step = StepContext(plan, ProgramBuilder(plan.ranks), batch, positions)
    if plan.schedule is None:
        lowerings(step, plan.operators)
    else:
        PipelineStep(plan, plan.schedule, step, plan.operators)
    return {name: step.parameters[name] for name in plan.model.parameter_shapes}


def state_views(plan: Plan) -> dict[str, View]:
    """Return the views of what the optimizer keeps of every parameter: of each of its moments.

    They are those of the parameters, or of shards of these.
    """
    views = parameter_views(plan)
    if not plan.sharded_optimizer:
        return views
    return {name: own_view(view) for name, view in views.items()}


def _update(step: StepContext, clip: bool) -> None:
    shard_gradients(step)
    norm = lower_gradient_norm(step)
    step.builder.end_with(norm)
    for name in step.plan.model.parameter_shapes:
        lower_update(step, name, norm if clip or step.skips else None)
