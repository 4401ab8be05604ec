"""The addition of residual stream and branch, with dropout of the branch: its signatures."""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.operators.builder import View
from primepar.operators.step_context import StepContext


class AdditionLowering:
    """Residual stream plus branch; dropout has the name of the branch's operator."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.builder, self.name = step.builder, operator.name
        self.space = step.space(step.ends(self.name).output, operator.K)
        self.takes = self.space.cuts

    def forward(self, *inputs: View) -> View:
        """Lower the sum."""
        writes = f"{self.name}[M,K]"
        return self.builder.compute(self.name, "add.forward", self.space, inputs, writes)

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the branch; that of the stream is the output gradient."""
        writes = f"{self.name}/dI2[M,K]"
        return dy, self.builder.compute(self.name, "add.backward", self.space, [dy], writes)
