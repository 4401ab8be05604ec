"""The mean cross-entropy over a vocabulary that may be sharded: signatures of its phases.

The logits are never gathered: only the largest logit and two sums of each row are all-reduced.
Where a rank has whole rows there is nothing to reduce, and torch has one kernel for the logarithms
of the softmax, and one for the loss that they give.
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
        self.is_whole = self.layout.grid[1] == 1
        self.space = step.space(self.layout, step.vocabulary)
        self.takes = self.space.cuts
        self.mean = str(Fraction(1, step.all_rows))
        self.targets = self.builder.given("targets", self.space, "M")

    def forward(self, *inputs: View) -> View:
        """Lower the loss, the same number on every rank."""
        (x,) = inputs
        if self.is_whole:
            logs = self._wide("cross_entropy.logs", [x], "loss/logs[M,K]")
            self.reads = [logs, self.targets]
            kernel, reads = "cross_entropy.forward", self.reads
        else:
            sharing = self.layout.peers_along(1)
            largest = self._wide("loss.largest", [x], "loss/largest[M]", "max")
            self.builder.all_reduce(largest, sharing, "max")
            sums = self._wide("loss.sums", [x, largest, self.targets], "loss/sums[0,M]", fixed=2)
            self.builder.all_reduce(sums, sharing)
            self.reads = [x, largest, sums]
            kernel, reads = "loss.forward", [sums]
        loss = self._wide(kernel, reads, "loss[0]", scale=self.mean)
        with self.step.at_last():
            self.builder.all_reduce(loss, self.layout.peers_along(0))
        return loss

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the logits; that of the padding is zero."""
        kernel, reads, writes = "cross_entropy.backward", self.reads, "loss/dI[M,K]"
        if not self.is_whole:
            shares = self._wide("loss.shares", self.reads, "loss/shares[M,K]")
            kernel, reads = "loss.backward", [shares, self.targets]
        return (self.builder.compute("loss", kernel, self.space, reads, writes, scale=self.mean),)

    def _wide(
        self,
        kernel: str,
        reads: list[View],
        writes: str,
        reduction: Reduction = "sum",
        fixed: int = 1,
        scale: Coefficient = "1",
    ) -> View:
        """Compute a phase whose result has float32 at least."""
        return self.builder.compute(
            "loss", kernel, self.space, reads, writes, reduction, fixed, True, scale
        )
