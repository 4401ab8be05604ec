"""The activation, element by element: signatures of its phases; nothing is sent."""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.operators.builder import View
from primepar.operators.step_context import StepContext


class ActivationLowering:
    """A block of the output of the same block of the input; where it is gated, of twice as many."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.builder, self.name = step.builder, operator.name
        layout = step.ends(self.name).output
        self.given = step.space(layout, operator.N)
        self.made = step.space(layout, operator.K)
        self.takes = self.given.cuts

    def forward(self, *inputs: View) -> View:
        """Lower the output."""
        (self.x,) = inputs
        writes = f"{self.name}[M,K]"
        return self.builder.compute(self.name, "activation.forward", self.made, [self.x], writes)

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the input, which is made of the input again."""
        reads, writes = [self.x, dy], f"{self.name}/dI[M,K]"
        return (self.builder.compute(self.name, "activation.backward", self.given, reads, writes),)
