"""The embedding, whose vocabulary may be sharded: signatures of its phases, and communication."""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.operators.builder import Cuts, IterationSpace, View
from primepar.operators.redistribution import moved, summed_in_parts
from primepar.operators.step_context import StepContext
from primepar.plan.layouts import Way, lookup, summed_rows
from primepar.plan.operator_layouts import part
from primepar.schedule.layout import Layout


class EmbeddingLowering:
    """Each rank looks up rows in its shard of the token table; the partial rows are summed."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.step, self.builder = step, step.builder
        self.lookup, self.layout = lookup(step.plan), step.ends("embedding").output
        self.whole = IterationSpace(
            self.lookup, {"M": step.rows, "V": step.vocabulary, "K": operator.K}
        )  # fmt: skip
        self.space = step.space(self.layout, operator.K)
        self.takes: Cuts = ()
        self.tokens = self.builder.given("tokens", self.whole, "M")
        self.table = step.given("embedding.token", self.whole, "V", "K")
        self.drops = step.plan.model.embedding_dropout > 0
        self.positions: list[View] = []
        if "embedding.position" in step.places:
            context = step.plan.model.context
            self.positions = [step.given("embedding.position", self.space, "0", "K", fixed=context)]

    def forward(self, *inputs: View) -> View:
        """Lower the rows of the tokens plus those of their positions, with dropout."""
        last = not (self.positions or self.drops)
        writes = "embedding[M,K]" if last else "embedding/rows[M,K]"
        reads = [self.tokens, self.table]
        partial = self.builder.compute("embedding", "embedding.lookup", self.whole, reads, writes)
        rows = self._summed(partial)
        if last:
            return rows
        reads = [rows, *self.positions]
        return self.builder.compute(
            "embedding", "embedding.forward", self.space, reads, "embedding[M,K]"
        )

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradients of the tables; the gradient of a tied head is added to the first."""
        step, builder, name = self.step, self.builder, "embedding.token"
        if self.drops:
            writes = "embedding/dsum[M,K]"
            dy = builder.compute("embedding", "embedding.backward", self.space, [dy], writes)
        if self.positions:
            step.add_gradient("embedding.position", "position.gradient", self.space, [dy],
                              "0,K", step.plan.model.context)  # fmt: skip
        head = step.gradients.get(name)
        rows = self._rows
        dy = moved(builder, dy, Way(self.layout, rows.layout), rows.cuts, "embedding/drows")
        reads, writes = [self.tokens, dy], f"{name}.grad[V,K]"
        if head is None:
            with step.weight_gradients():
                step.add_gradient(name, "token.gradient", self.whole, reads, "V,K")
            return ()
        with step.weight_gradients():
            table = builder.compute(name, "token.gradient", self.whole, reads,
                                    "embedding/dtable[V,K]", wide=True)  # fmt: skip
            with step.at_last():
                builder.all_reduce(table, step.places[name].summed)
        with step.after():
            parts = [step.own_parts(name, view) for view in (table, head)]
            sizes = {dim: self.whole.sizes[dim] for dim in ("V", "K")}
            space = IterationSpace(Layout(parts[0].grid, parts[0].held), sizes)
            step.gradients[name] = builder.compute(
                name, "sum.fan-in", space, parts, writes, wide=True
            )
        return ()

    @property
    def _rows(self) -> IterationSpace:
        """The layout of the rows of a rank's tokens, before they are summed."""
        return self.step.space(part(self.lookup, (0, 2)), self.whole.sizes["K"])

    def _summed(self, rows: View) -> View:
        """Reduce-scatter the partial rows, and move the sums to the output layout."""
        kept = summed_rows(self.step.plan)
        cuts = self.step.space(kept, self.whole.sizes["K"]).cuts
        groups, parts = self.lookup.peers_along(1), [row for ((row, _),) in kept.held]
        sums = summed_in_parts(self.builder, rows, groups, parts, cuts, "embedding/sums")
        return moved(self.builder, sums, Way(kept, self.layout), self.space.cuts, "embedding/O")
