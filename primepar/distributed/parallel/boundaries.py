"""The layouts of activations between the layers of a user's module.

Two layouts are enough. In the *stream* layout a rank has all columns of its rows; norms, residuals
and losses work there. In the *split* layout it has its columns of the same rows; attention works on
its heads there, and an activation function on its hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from primepar.errors import PlanError
from primepar.plan.operator_layouts import part, resident
from primepar.schedule.layout import Layout


@dataclass(frozen=True)
class Boundaries:
    """Both layouts over (rows, columns). A rank has the same rows in both."""

    stream: Layout
    split: Layout

    @property
    def row_groups(self) -> int:
        """Number of groups of ranks with different rows."""
        return self.stream.grid[0]

    def row_group(self, rank: int) -> int:
        """Which of the groups a rank is in."""
        return self.stream.held[rank][0][0]

    @property
    def parts(self) -> int:
        """Number of ranks that share the columns of a row."""
        return self.split.grid[1]


def boundaries_of(
    ranks: int, sequences: Mapping[str, str], entering: Mapping[str, str]
) -> Boundaries:
    """Return the layouts for some layers, each with its sequence.

    The rows are those of the outputs, where all layers agree on them. Otherwise a rank has all
    rows. The columns are those of the outputs of the layers that are `entering` a region. Raises
    `PlanError` if these disagree.
    """
    whole = Layout((1,), (((0,),),) * ranks)
    rows = {part(resident(text, "O"), (0,)) for text in sequences.values()}
    row = _only(rows, whole)
    names: dict[Layout, str] = {}
    for name, text in entering.items():
        names.setdefault(part(resident(text, "O"), (1,)), name)
    if len(names) > 1:
        first, second = list(names.values())[:2]
        raise PlanError(
            f"{first} and {second}: expected outputs that are cut into the same columns on every "
            f"rank, got those of {entering[first]!r} and {entering[second]!r}: give both one "
            "sequence"
        )
    column = _only(set(names), whole)
    return Boundaries(_joint(row, whole), _joint(row, column))


def _only(layouts: set[Layout], whole: Layout) -> Layout:
    """Return the only layout of one dim; `whole` if there are others, or several slices a rank."""
    layout = layouts.pop() if len(layouts) == 1 else whole
    return layout if all(len(held) == 1 for held in layout.held) else whole


def _joint(rows: Layout, columns: Layout) -> Layout:
    held = (
        ((row, column),) for ((row,),), ((column,),) in zip(rows.held, columns.held, strict=True)
    )
    return Layout((rows.grid[0], columns.grid[0]), tuple(held))
