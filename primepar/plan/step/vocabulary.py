"""The two ends of a step, whose vocabulary may be cut: embedding and loss."""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.plan.layouts import Way, lookup, part, summed_rows
from primepar.plan.step.context import Step
from primepar.plan.step.draft import Cuts, Space, View
from primepar.plan.step.moves import moved, summed_in_parts


class StepEmbedding:
    """Each rank looks up what it holds of the token table; partial rows are summed."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.step, self.draft = step, step.draft
        self.lookup, self.layout = lookup(step.plan), step.ends("embedding").output
        self.whole = Space(
            self.lookup, {"M": step.rows, "V": step.vocabulary, "K": operator.K}
        )  # fmt: skip
        self.at = step.space(self.layout, operator.K)
        self.takes: Cuts = ()
        self.tokens = self.draft.given("tokens", self.whole, "M")
        self.table = step.given("embedding.token", self.whole, "V", "K")
        self.learned = "embedding.position" in step.places
        if self.learned:
            context = step.plan.model.context
            self.positions = step.given("embedding.position", self.at, "0", "K", fixed=context)

    def forward(self, *inputs: View) -> View:
        """Lower the rows of the tokens, with their positions."""
        reads = [self.tokens, self.table]
        writes = "embedding/rows[M,K]" if self.learned else "embedding[M,K]"
        rows = self._summed(self.draft.compute("embedding.lookup", self.whole, reads, writes))
        if not self.learned:
            return rows
        reads = [rows, self.positions]
        return self.draft.compute("embedding.forward", self.at, reads, "embedding[M,K]")

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradients of the tables; that of a tied head is there, and is added once."""
        step, draft, context = self.step, self.draft, self.step.plan.model.context
        if self.learned:
            phase, writes = "embedding.position.gradient", "embedding.position.grad[0,K]"
            gradient = draft.compute(phase, self.at, [dy], writes, fixed=context)
            step.add_gradient("embedding.position", gradient)
        head = step.gradients.get("embedding.token")
        rows = self._rows
        dy = moved(draft, dy, Way(self.layout, rows.layout), rows.cuts, "embedding/drows")
        own = "embedding.token.grad" if head is None else "embedding/dtable"
        phase, reads = "embedding.token.gradient", [self.tokens, dy]
        step.add_gradient("embedding.token", draft.compute(phase, self.whole, reads, f"{own}[V,K]"))
        if head is not None:
            reads = [step.gradients["embedding.token"], head]
            writes = "embedding.token.grad[V,K]"
            total = draft.compute("embedding.token.fan-in", self.whole, reads, writes)
            step.gradients["embedding.token"] = total
        return ()

    @property
    def _rows(self) -> Space:
        """Where the rows of a rank's tokens lie before they are summed."""
        return self.step.space(part(self.lookup, (0, 2)), self.whole.sizes["K"])

    def _summed(self, rows: View) -> View:
        """Sum partial rows in parts; sums that lie elsewhere in the output go there."""
        kept = summed_rows(self.step.plan)
        cuts = self.step.space(kept, self.whole.sizes["K"]).cuts
        groups, parts = self.lookup.peers_along(1), [row for ((row, _),) in kept.held]
        sums = summed_in_parts(self.draft, rows, groups, parts, cuts, "embedding/sums")
        return moved(self.draft, sums, Way(kept, self.layout), self.at.cuts, "embedding/O")


class StepLoss:
    """Mean cross-entropy; a row's largest logit, sum and target go over the ranks that share it."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.draft = step.draft
        self.layout = step.ends(operator.name).input
        self.at = step.space(self.layout, step.vocabulary)
        self.takes = self.at.cuts
        self.targets = self.draft.given("targets", self.at, "M")

    def forward(self, *inputs: View) -> View:
        """Lower the loss, the same number on every rank."""
        (x,) = inputs
        draft, sharing = self.draft, self.layout.peers_along(1)
        largest = draft.compute("loss.largest", self.at, [x], "loss/largest[M]", "max")
        draft.all_reduce(largest, sharing, "max")
        reads = [x, largest, self.targets]
        sums = draft.compute("loss.sums", self.at, reads, "loss/sums[0,M]", fixed=2)
        draft.all_reduce(sums, sharing)
        self.shares = draft.compute(
            "loss.shares", self.at, [x, largest, sums], "loss/shares[M,K]"
        )  # fmt: skip
        loss = draft.compute("loss.forward", self.at, [sums], "loss[0]")
        draft.all_reduce(loss, self.layout.peers_along(0))
        return loss

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the logits; that of the padding is zero."""
        reads = [self.shares, self.targets]
        return (self.draft.compute("loss.backward", self.at, reads, "loss/dI[M,K]"),)
