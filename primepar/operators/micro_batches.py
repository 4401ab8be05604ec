"""Micro-batches of a step: slices of its rows (M) over time.

A step is lowered for one micro-batch and repeated. Blocks of micro-batch k are further row blocks
of the tensors of the whole step: where a tensor has two row blocks in a micro-batch, `x[1,0]` of
the first is `x[3,0]` of the second. So dropout, the loss and the sums over rows mean what they mean
in a step without micro-batches, and a weight gradient is the sum over all row blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from primepar.operators.builder import Cuts, View
from primepar.operators.renamed_blocks import blocks_renamed
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import Compute, Instruction
from primepar.schedule.signature import Tensor


@dataclass(frozen=True)
class MicroBatches:
    """`count` micro-batches; the tables are those of one."""

    count: int
    tensors: Mapping[str, Tensor]
    dims: Mapping[str, tuple[str, ...]]
    grid: Mapping[str, Mapping[str, int]]
    _renamed: dict[tuple[str, int], str] = field(default_factory=dict, repr=False, compare=False)

    def all_tensors(self) -> dict[str, Tensor]:
        """Return the cuts of all tensors in the whole step."""
        return {
            name: msgspec.structs.replace(tensor, cuts=self._cuts(name, tensor.cuts))
            for name, tensor in self.tensors.items()
        }

    def whole_grid(self) -> dict[str, dict[str, int]]:
        """Return the slices of every phase in the whole step."""
        return {
            phase: {dim: slices * (self.count if dim == "M" else 1) for dim, slices in dims.items()}
            for phase, dims in self.grid.items()
        }

    def _row_dim(self, tensor: str) -> int | None:
        """Return the number of the dim of the rows; None for a tensor without rows."""
        dims = self.dims.get(tensor, ())
        return next((place for place, dim in enumerate(dims) if dim.split("/")[0] == "M"), None)

    def _cuts(self, tensor: str, cuts: Cuts) -> Cuts:
        place = self._row_dim(tensor)
        if place is None:
            return cuts
        *starts, rows = cuts[place]
        firsts = range(0, self.count * rows, rows)
        line = (*(first + start for first in firsts for start in starts), self.count * rows)
        return (*cuts[:place], line, *cuts[place + 1 :])

    def index(self, tensor: str, index: Index, number: int) -> Index:
        """Return the index, in the whole step, of a block of micro-batch `number`."""
        place = self._row_dim(tensor)
        if place is None:
            return index
        row = index[place] + number * (len(self.tensors[tensor].cuts[place]) - 1)
        return (*index[:place], row, *index[place + 1 :])

    def block(self, name: str, number: int) -> str:
        """Return the name, in the whole step, of a block of micro-batch `number`."""
        key = name, number
        if key not in self._renamed:
            tensor, _, rest = name.rpartition("[")
            inside, _, marks = rest.partition("]")
            index = tuple(map(int, inside.split(",")))
            self._renamed[key] = block_name(tensor, self.index(tensor, index, number)) + marks
        return self._renamed[key]

    def blocks(self, names: Iterable[str]) -> list[str]:
        """Return blocks of all micro-batches; one without rows comes once."""
        numbers = range(self.count)
        return list(dict.fromkeys(self.block(name, number) for name in names for number in numbers))

    def view(self, view: View) -> View:
        """Return a view of a tensor in the whole step."""
        held = tuple(
            tuple(dict.fromkeys(
                self.index(view.name, index, number)
                for number in range(self.count) for index in indices
            ))
            for indices in view.held
        )  # fmt: skip
        return replace(view, cuts=self._cuts(view.name, view.cuts), held=held)

    def instruction(self, node: Instruction, number: int, first_rank: int) -> Instruction:
        """Return an instruction for micro-batch `number`, on ranks from `first_rank` on."""
        changes = blocks_renamed(node, lambda name: self.block(name, number))
        changes |= _on_ranks(node, lambda rank: rank + first_rank)
        request = getattr(node, "request", None)
        if request is not None:
            changes["request"] = f"{request} of {number}"
        if isinstance(node, Compute) and "M" in (node.sub_operator or {}):
            slices = dict(node.sub_operator or {})
            slices["M"] += number * self.grid[str(node.phase)]["M"]
            changes["sub_operator"] = slices
        return msgspec.structs.replace(node, **changes)


def _on_ranks(node: Instruction, rank: Callable[[int], int]) -> dict[str, Any]:
    """Return the fields of an instruction that name ranks, with other ranks."""
    changes: dict[str, Any] = {
        field: rank(getattr(node, field))
        for field in ("peer", "root")
        if getattr(node, field, None) is not None
    }
    if getattr(node, "group", None) is not None:
        changes["group"] = tuple(map(rank, node.group))  # type: ignore[union-attr]
    return changes
