"""The batches that fit a plan: how its operators cut the rows, and what attention needs of a cut.

Rows are tokens, sequence after sequence. Most operators work row by row: their blocks may begin
inside a sequence and hold, for example, one and a half. A block of attention holds whole sequences,
or one of several equal parts of a single sequence. In the second case the ranks that share the
sequence all-gather its keys and values, and reduce the gradients of these. That is all-gather
context parallelism; choosing it by the batch alone is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from math import lcm

from primepar.models.graph import Operator
from primepar.plan.operator_layouts import ends_of, sequence_of


@dataclass(frozen=True)
class RowCuts:
    """Slices of the rows: `every` is the least common multiple, `attention` has them by name.

    A step fits where `every` divides its tokens, and the slices of each attention divide the number
    of sequences or are a multiple of it. With `micro_batches` that must hold for each of them.
    """

    every: int
    attention: Mapping[str, int]
    micro_batches: int = 1

    def refusal(self, batch: int, positions: int) -> str | None:
        """Why `batch` sequences of `positions` tokens do not fit; None where they do."""
        wrong = self._wrong(batch, positions)
        return wrong and f"{wrong}: take {self.smallest_batch(positions, batch)}"

    def smallest_batch(self, positions: int, least: int = 1) -> int:
        """The smallest number of sequences, `least` or more, that fits."""
        return next(
            batch for batch in count(max(1, least)) if self._wrong(batch, positions) is None
        )

    def _wrong(self, batch: int, positions: int) -> str | None:
        if batch < 1:
            return f"expected 1 sequence or more, got {batch}"
        size, rest = divmod(batch, self.micro_batches)
        if rest:
            return f"expected a multiple of the {self.micro_batches} micro-batches, got {batch}"
        wrong = self._wrong_rows(size, positions)
        if wrong and self.micro_batches > 1:
            return f"micro-batch of {size}: {wrong}"
        return wrong

    def _wrong_rows(self, batch: int, positions: int) -> str | None:
        for name, slices in self.attention.items():
            if batch % slices and slices % batch:
                return (
                    f"expected a multiple or a divisor of the {slices} slices of the rows in "
                    f"{name}, got {batch}"
                )
        rows = batch * positions
        if rows % self.every:
            return (
                f"expected rows in a multiple of {self.every}, as the operators cut them, "
                f"got {rows}, {batch} x {positions} tokens"
            )
        return None


def row_cuts(
    operators: Iterable[Operator], sequences: Mapping[str, str], micro_batches: int = 1
) -> RowCuts:
    """How operators cut the rows; `sequences` are by the names of the operators."""
    cuts, attention = [1], {}
    for operator in operators:
        sequence = sequence_of(operator, sequences[operator.name])
        if operator.kind == "linear":
            cuts.append(sequence.grid["M"])
        layouts = ends_of(operator.kind, str(sequence))
        cuts += [
            layout.grid[0] for layout in (layouts.input, layouts.output, layouts.input_gradient)
        ]
        if operator.kind == "attention":
            attention[operator.name] = layouts.output.grid[0]
    return RowCuts(lcm(*cuts), attention, micro_batches)
