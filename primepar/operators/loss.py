"""The mean cross-entropy over a vocabulary that may be sharded: signatures of its phases.

The logits are never gathered: only the largest logit and two sums of each row are all-reduced.
The kernels return sums over rows. The mean is the scale 1/rows of the phases `loss.forward` and
`loss.backward`, with the rows of the whole step: what the program states, the proof follows.
"""

from __future__ import annotations

from fractions import Fraction

from primepar.models.graph import Operator
from primepar.operators.builder import View
from primepar.operators.step_context import StepContext
from primepar.schedule.signature import Coefficient, Reduction


class LossLowering:
    """Mean cross-entropy; ranks that share a row all-reduce its largest logit, sum and target."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.step, self.builder = step, step.builder
        self.layout = step.ends(operator.name).input
        self.space = step.space(self.layout, step.vocabulary)
        self.takes = self.space.cuts
        self.mean = str(Fraction(1, step.all_rows))
        self.targets = self.builder.given("targets", self.space, "M")

    def forward(self, *inputs: View) -> View:
        """Lower the loss, the same number on every rank."""
        (x,) = inputs
        sharing = self.layout.peers_along(1)
        largest = self._wide("largest", [x], "loss/largest[M]", "max")
        self.builder.all_reduce(largest, sharing, "max")
        sums = self._wide("sums", [x, largest, self.targets], "loss/sums[0,M]", fixed=2)
        self.builder.all_reduce(sums, sharing)
        self.reads = [x, largest, sums]
        loss = self._wide("forward", [sums], "loss[0]", scale=self.mean)
        with self.step.at_last():
            self.builder.all_reduce(loss, self.layout.peers_along(0))
        return loss

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the logits; that of the padding is zero."""
        shares = self._wide("shares", self.reads, "loss/shares[M,K]")
        reads, writes = [shares, self.targets], "loss/dI[M,K]"
        return (
            self.builder.compute(
                "loss", "loss.backward", self.space, reads, writes, scale=self.mean
            ),
        )

    def _wide(
        self,
        phase: str,
        reads: list[View],
        writes: str,
        reduction: Reduction = "sum",
        fixed: int = 1,
        scale: Coefficient = "1",
    ) -> View:
        """Compute a phase whose result has float32 at least."""
        return self.builder.compute(
            "loss", f"loss.{phase}", self.space, reads, writes, reduction, fixed, True, scale
        )
