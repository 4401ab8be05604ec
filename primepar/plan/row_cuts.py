"""Which batches a plan takes: how its operators cut the rows, and what attention makes of a cut.

Rows are tokens, sequence after sequence. Most operators work row by row: a block of theirs may
begin amid a sequence, and hold one and a half. A block of attention holds whole sequences, or one
of equal parts of a single sequence; then the ranks that share the sequence gather its keys and
values, and sum the gradients of these. That is all-gather context parallelism; to choose it by the
batch alone is ours.
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
    """Slices of the rows: `every` is a multiple of each operator's, `attention` has them by name.

    A step fits where `every` divides its tokens, and each attention's slices divide the sequences,
    or the sequences them.
    """

    every: int
    attention: Mapping[str, int]

    def refusal(self, batch: int, positions: int) -> str | None:
        """Why a step of so many sequences of so many tokens does not fit; None where it does."""
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


def row_cuts(operators: Iterable[Operator], sequences: Mapping[str, str]) -> RowCuts:
    """How operators cut the rows under these sequences, by the names of the operators."""
    cuts, attention = [1], {}
    for operator in operators:
        sequence = sequence_of(operator, sequences[operator.name])
        if operator.kind == "linear":
            cuts.append(sequence.grid["M"])
        layouts = ends_of(operator.kind, str(sequence))
        cuts += [each.grid[0] for each in (layouts.input, layouts.output, layouts.input_gradient)]
        if operator.kind == "attention":
            attention[operator.name] = layouts.output.grid[0]
    return RowCuts(lcm(*cuts), attention)
