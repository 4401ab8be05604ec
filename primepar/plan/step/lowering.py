"""A whole training step under a plan, as one program: forward, loss, backward, sums and updates.

Operators come in the order of execution, backward in reverse, and last the updates. Everything is
where the plan's layouts say and moves as they say; no method is known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from primepar.errors import PlanError
from primepar.models.graph import Operator
from primepar.plan.layouts import Edge, edges
from primepar.plan.plan import Plan
from primepar.plan.step.attention import StepAttention
from primepar.plan.step.blocks import freed
from primepar.plan.step.context import Lowered, Step
from primepar.plan.step.draft import Draft, View
from primepar.plan.step.linear import StepLinear
from primepar.plan.step.local import StepActivation, StepAdd, StepNorm
from primepar.plan.step.moves import moved
from primepar.plan.step.vocabulary import StepEmbedding, StepLoss
from primepar.schedule.program import Program

LOWERED: Mapping[str, Callable[[Step, Operator], Lowered]] = {
    "embedding": StepEmbedding,
    "norm": StepNorm,
    "linear": StepLinear,
    "attention": StepAttention,
    "activation": StepActivation,
    "add": StepAdd,
    "loss": StepLoss,
}
"""`Operator.kind` -> how it is lowered."""


def lower_step(plan: Plan, batch: int, positions: int) -> Program:
    """The program of one training step of `batch` sequences of `positions` tokens.

    Every rank starts with its blocks of the parameters and of AdamW's moments, its tokens and its
    targets, and ends with the new parameters and moments where the old ones were, and the loss.
    Raises `PlanError` for a batch that the plan does not divide, or positions that the model lacks.
    """
    if not 1 <= positions <= plan.model.context:
        raise PlanError(
            f"positions: expected 1 to context={plan.model.context}, got {positions}: "
            "cut the sequences"
        )
    plan.check_batch(batch, positions)
    step = Step(plan, Draft(plan.ranks), batch, positions)
    draft = step.draft
    parts = {each.name: LOWERED[each.kind](step, each) for each in plan.operators}
    ways = {(each.producer, each.consumer): each for each in edges(plan) if each.rows is None}
    draft.end_with(_forward(step, parts, ways))
    _backward(step, parts, ways)
    for name in plan.model.parameter_shapes:
        step.update(name)
    pairs = zip(draft.programs, draft.final, strict=True)
    return Program(
        format="primepar-program",
        version=1,
        ranks=plan.ranks,
        programs=tuple(tuple(freed(instructions, final)) for instructions, final in pairs),
        grid=draft.grid,
        initial=tuple(map(tuple, draft.initial)),
        final=tuple(map(tuple, draft.final)),
        phases=draft.phases,
        tensors=draft.tensors,
    )


Ways = Mapping[tuple[str, str], Edge]


def _forward(step: Step, parts: Mapping[str, Lowered], ways: Ways) -> View:
    """Lower every operator; returns the loss."""
    outputs: dict[str, View] = {}
    consumers = _consumers(step)
    for operator in step.plan.operators:
        name, part = operator.name, parts[operator.name]
        inputs = [
            moved(
                step.draft,
                outputs[source],
                ways[source, name].forward,
                part.takes,
                f"{name}/I" if place == 0 else f"{name}/I{place + 1}",
                shared=consumers[source] > 1,
            )
            for place, source in enumerate(operator.inputs)
        ]
        outputs[name] = part.forward(*inputs)
    return outputs["loss"]


def _backward(step: Step, parts: Mapping[str, Lowered], ways: Ways) -> None:
    """Lower backward in reverse; gradients of a tensor that went to several operators are added."""
    found: dict[str, list[View]] = {each.name: [] for each in step.plan.operators}
    consumers = _consumers(step)
    for operator in reversed(step.plan.operators):
        dy = _fan_in(step, operator, found[operator.name])
        for source, dx in zip(operator.inputs, parts[operator.name].backward(dy), strict=True):
            one = consumers[source] == 1
            name = f"{source}.grad" if one else f"{source}.grad{len(found[source]) + 1}"
            edge = ways[source, operator.name]
            cuts = step.space(edge.backward.target, edge.features).cuts
            found[source].append(moved(step.draft, dx, edge.backward, cuts, name))


def _fan_in(step: Step, operator: Operator, found: list[View]) -> View | None:
    """The gradient of an operator's output; None for the loss, where it is one."""
    if len(found) < 2:
        return found[0] if found else None
    at = step.space(step.ends(operator.name).output, operator.K)
    writes = f"{operator.name}.grad[M,K]"
    return step.draft.compute(f"{operator.name}.fan-in", at, found, writes)


def _consumers(step: Step) -> Counter[str]:
    """How many operators take the output of each."""
    return Counter(source for each in step.plan.operators for source in each.inputs)
