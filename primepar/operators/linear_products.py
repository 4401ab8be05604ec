"""Linear operators inlined into a program, with the signatures of their phases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from primepar.operators.builder import Cuts, Held, ProgramBuilder, View, even
from primepar.operators.redistribution import indices, reblocked, take_in
from primepar.schedule.lowering import lower
from primepar.schedule.operators import OUTPUTS, PRODUCTS, Linear, Phase, is_wide_sum, tensor_dims
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence
from primepar.schedule.signature import Signature

Phases = tuple[Phase, ...]


@dataclass(frozen=True)
class Products:
    """One linear operator inlined into a program; `names` maps its tensors to names there.

    Blocks of `turned` tensors are (K, N) where those of the operator are (N, K). With `wide_sums` a
    sum of several sub-operators is a wide tensor, `NAME.sum`, until it is complete. Then it is
    copied to the tensor of its name, which has the model's dtype; that of a tensor in `stay_wide`
    is not. With `spends_weight` nobody needs W after backward.
    """

    builder: ProgramBuilder
    sequence: Sequence
    operator: Linear
    name: str
    names: dict[str, str]
    turned: frozenset[str] = frozenset()
    wide_sums: bool = False
    stay_wide: frozenset[str] = frozenset()
    spends_weight: bool = False

    def take_in(self, *phases: Phase) -> Program:
        """Append the program of some phases, with their signatures."""
        program = lowered(self.sequence, self.operator, phases, self.spends_weight)
        self.append(program, phases)
        return program

    def append(self, program: Program, phases: Phases, apart: frozenset[str] = frozenset()) -> None:
        """Append a program of these phases; blocks of tensors `apart` are scratch blocks."""
        names = {tensor: self._written(tensor) for tensor in self.names}
        take_in(self.builder, program, names, self.name, self.turned, apart)
        for phase in phases:
            reads, writes = PRODUCTS[phase]
            read = tuple(self._template(tensor, self.names[tensor]) for tensor in reads)
            written = self._template(writes, self._written(writes))
            signature = Signature(read, written, kernel=f"linear.{phase}")
            self.builder.phases[f"{self.name}.{phase}"] = signature
            self.builder.grid[f"{self.name}.{phase}"] = dict(self.sequence.grid)

    def made(self, program: Program, tensor: str) -> View:
        """Declare a tensor that the program makes, with the blocks that every rank ends with."""
        return self.rounded(self.summed(program, tensor), tensor)

    def summed(self, program: Program, tensor: str) -> View:
        """Declare a tensor that the program makes, before it is `rounded`."""
        held = self.held(program.final or (), tensor)
        dims = self.dims(tensor) if tensor.endswith("W") else ("M", "K")
        name = self._written(tensor)
        return self.builder.new(name, self.cuts(tensor), held, dims, self._is_wide(tensor))

    def rounded(self, view: View, tensor: str) -> View:
        """Append the copy of a wide sum to its tensor; other tensors are returned unchanged."""
        if not self._is_wide(tensor) or tensor in self.stay_wide:
            return view
        return reblocked(self.builder, view, view.cuts, self.names[tensor], copy=True, wide=False)

    def _is_wide(self, tensor: str) -> bool:
        """Return whether a tensor is a sum of several sub-operators that is held as a wide one."""
        summed = {dim for dim, slices in self.sequence.grid.items() if slices > 1}
        if not self.wide_sums or tensor not in OUTPUTS or summed <= set(tensor_dims(tensor)):
            return False
        return is_wide_sum(tensor, self.sequence.steps)

    def _written(self, tensor: str) -> str:
        """Return the name under which the products write a tensor."""
        return f"{self.names[tensor]}.sum" if self._is_wide(tensor) else self.names[tensor]

    def held(self, by_rank: Iterable[Iterable[str]], tensor: str) -> Held:
        """Return the indices of a tensor among the blocks of every rank of its programs."""
        held = tuple(indices(blocks, tensor) for blocks in by_rank)
        if tensor in self.turned:
            held = tuple(tuple(index[::-1] for index in indices) for indices in held)
        return held

    def dims(self, tensor: str) -> tuple[str, ...]:
        """Return the dims of a tensor's blocks, in their order in this program."""
        dims = tuple(dim for dim in tensor_dims(tensor) if dim in self.sequence.grid)
        return dims[::-1] if tensor in self.turned else dims

    def _template(self, tensor: str, name: str) -> str:
        return f"{name}[{','.join(self.dims(tensor))}]"

    def cuts(self, tensor: str) -> Cuts:
        """Return the cuts of a tensor into the blocks that the sequence computes with."""
        dims, grid = self.dims(tensor), self.sequence.grid
        return even([self.operator.size(dim) for dim in dims], [grid[dim] for dim in dims])


@lru_cache(maxsize=1024)
def lowered(
    sequence: Sequence, operator: Linear, phases: Phases, spends_weight: bool = False
) -> Program:
    """Return the program of some phases of one linear operator; it is lowered once."""
    return lower(sequence, operator, phases, spends_weight)
