"""What the operators of a partitioned model share during one training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from primepar.models.dropout import Draw
from primepar.plan.layouts import Ends, ParameterPlace, ends, padded_vocabulary
from primepar.plan.plan import Plan
from primepar.reference.layers import Array, Tokens, kept_elements
from primepar.reference.partitioned_devices import Blocks, Devices, elements
from primepar.schedule.layout import Layout


@dataclass
class Step:
    """One training step: its tokens, row after row, and the gradients found so far.

    `parameters` and `gradients` hold the block of every rank by name, in the layout of `places`;
    a gradient is the whole sum on every rank that holds its block.
    """

    plan: Plan
    devices: Devices
    places: dict[str, ParameterPlace]
    parameters: dict[str, Blocks]
    tokens_M: Tokens
    targets_M: Tokens
    positions: int
    draw: Draw | None
    gradients: dict[str, Blocks] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Tokens of the step."""
        return self.tokens_M.size

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the token table and columns of the head, with the padding."""
        return padded_vocabulary(self.plan)

    def ends(self, name: str) -> Ends:
        """Layouts of an operator's input and output."""
        return ends(self.plan, name)

    def block_rows(self, layout: Layout, rank: int) -> Tokens:
        """The numbers of the rows that a rank holds."""
        return elements(layout, rank, 0, self.rows)

    def block_columns(self, layout: Layout, rank: int, width: int) -> Tokens:
        """The numbers of the columns that a rank holds of a tensor of `width` columns."""
        return elements(layout, rank, 1, width)

    def kept(
        self, layout: Layout, rank: int, probability: float, operator: str, width: int
    ) -> Array | None:
        """Which elements of a rank's block the dropout of an operator keeps; None for all."""
        rows_M = self.block_rows(layout, rank)
        columns_K = self.block_columns(layout, rank, width)
        return kept_elements(self.draw, probability, operator, rows_M, columns_K, width)

    def add_gradient(self, name: str, blocks: Blocks) -> None:
        """Take every rank's part of a parameter's gradient, and sum the parts where they rest."""
        self.gradients[name] = self.devices.reduced(blocks, self.places[name].summed)
