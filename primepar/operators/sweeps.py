"""Lowers a graph of operators: forward in the order of execution, backward in reverse order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from primepar.models.graph import Operator
from primepar.operators.activation import ActivationLowering
from primepar.operators.addition import AdditionLowering
from primepar.operators.attention import AttentionLowering
from primepar.operators.builder import View
from primepar.operators.embedding import EmbeddingLowering
from primepar.operators.linear import LinearLowering
from primepar.operators.loss import LossLowering
from primepar.operators.norm import NormLowering
from primepar.operators.redistribution import moved
from primepar.operators.step_context import OperatorLowering, StepContext
from primepar.plan.layouts import Edge, edges
from primepar.plan.plan import Plan

LOWERINGS: Mapping[str, Callable[[StepContext, Operator], OperatorLowering]] = {
    "embedding": EmbeddingLowering,
    "norm": NormLowering,
    "linear": LinearLowering,
    "attention": AttentionLowering,
    "activation": ActivationLowering,
    "add": AdditionLowering,
    "loss": LossLowering,
}
"""`Operator.kind` -> how it is lowered."""

Ways = Mapping[tuple[str, str], Edge]
"""(producer, consumer) -> the tensor between them."""
Parts = Mapping[str, OperatorLowering]
"""Operators by name, in the order of execution."""
Gradients = dict[str, list[View]]


def ways_of(plan: Plan) -> Ways:
    """Return the tensors between operators, without a table that two of them share."""
    return {(edge.producer, edge.consumer): edge for edge in edges(plan) if edge.rows is None}


def lowerings(step: StepContext, known: Iterable[Operator]) -> dict[str, OperatorLowering]:
    """Return the lowerings of some operators; this declares their parameters."""
    return {operator.name: LOWERINGS[operator.kind](step, operator) for operator in known}


def forward_sweep(step: StepContext, parts: Parts, ways: Ways, outputs: dict[str, View]) -> View:
    """Lower operators in order, adding to `outputs`; returns the output of the last one."""
    consumers = _consumers(step)
    for name, part in parts.items():
        operator = step.plan.operator(name)
        step.builder.mark(name)
        inputs = [
            moved(
                step.builder,
                outputs[source],
                ways[source, name].forward,
                part.takes,
                f"{name}/I" if place == 0 else f"{name}/I{place + 1}",
                shared=consumers[source] > 1,
            )
            for place, source in enumerate(operator.inputs)
        ]
        outputs[name] = part.forward(*inputs)
    return outputs[name]


def backward_sweep(step: StepContext, parts: Parts, ways: Ways, gradients: Gradients) -> None:
    """Lower backward of operators in reverse order; `gradients` are by the producer's name.

    Gradients from several consumers of a tensor are added.
    """
    consumers = _consumers(step)
    for name in list(parts)[::-1]:
        operator = step.plan.operator(name)
        step.builder.mark(name)
        dy = fan_in(step, operator, gradients[operator.name])
        for source, dx in zip(operator.inputs, parts[operator.name].backward(dy), strict=True):
            single = consumers[source] == 1
            dx_name = f"{source}.grad" if single else f"{source}.grad{len(gradients[source]) + 1}"
            edge = ways[source, operator.name]
            cuts = step.space(edge.backward.target, edge.features).cuts
            gradients[source].append(moved(step.builder, dx, edge.backward, cuts, dx_name))


def fan_in(step: StepContext, operator: Operator, gradients: list[View]) -> View | None:
    """Return the gradient of an operator's output: the sum over consumers; None for the loss."""
    if len(gradients) < 2:
        return gradients[0] if gradients else None
    space = step.space(step.ends(operator.name).output, operator.K)
    writes = f"{operator.name}.grad[M,K]"
    return step.builder.compute(operator.name, "sum.fan-in", space, gradients, writes)


def _consumers(step: StepContext) -> Counter[str]:
    """Return the number of consumers of every operator's output."""
    return Counter(source for operator in step.plan.operators for source in operator.inputs)
