"""The addition of the stream and a branch, part of which is dropped: signatures of its phases."""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.operators.builder import View
from primepar.operators.step_context import StepContext


class AdditionLowering:
    """The stream and a branch; the dropout is that of the branch's operator."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.builder, self.name = step.builder, operator.name
        self.at = step.space(step.ends(self.name).output, operator.K)
        self.takes = self.at.cuts

    def forward(self, *inputs: View) -> View:
        """Lower the sum."""
        writes = f"{self.name}[M,K]"
        return self.builder.compute(self.name, "add.forward", self.at, inputs, writes)

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the branch; that of the stream is the output's own."""
        writes = f"{self.name}/dI2[M,K]"
        return dy, self.builder.compute(self.name, "add.backward", self.at, [dy], writes)
