"""Linear operators inlined into a program, with the signatures of their phases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from primepar.operators.builder import Cuts, Held, ProgramBuilder, View, even
from primepar.operators.redistribution import indices, take_in
from primepar.schedule.lowering import lower
from primepar.schedule.operators import PRODUCTS, Linear, Phase, tensor_dims
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence
from primepar.schedule.signature import Signature

Phases = tuple[Phase, ...]


@dataclass(frozen=True)
class Products:
    """One linear operator inlined into a program; `names` maps its tensors to names there.

    Blocks of `turned` tensors are (K, N) where those of the operator are (N, K).
    """

    builder: ProgramBuilder
    sequence: Sequence
    operator: Linear
    name: str
    names: dict[str, str]
    turned: frozenset[str] = frozenset()

    def take_in(self, *phases: Phase) -> Program:
        """Append the program of some phases, with their signatures."""
        program = lowered(self.sequence, self.operator, phases)
        self.append(program, phases)
        return program

    def append(self, program: Program, phases: Phases, apart: frozenset[str] = frozenset()) -> None:
        """Append a program of these phases; blocks of tensors `apart` are scratch blocks."""
        take_in(self.builder, program, self.names, self.name, self.turned, apart)
        for phase in phases:
            reads, writes = PRODUCTS[phase]
            *read, written = (self._template(tensor) for tensor in (*reads, writes))
            signature = Signature(tuple(read), written, kernel=f"linear.{phase}")
            self.builder.phases[f"{self.name}.{phase}"] = signature
            self.builder.grid[f"{self.name}.{phase}"] = dict(self.sequence.grid)

    def made(self, program: Program, tensor: str) -> View:
        """Declare a tensor that the program makes, with the blocks that every rank ends with."""
        held = self.held(program.final or (), tensor)
        dims = self.dims(tensor) if tensor.endswith("W") else ("M", "K")
        return self.builder.new(self.names[tensor], self.cuts(tensor), held, dims)

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

    def _template(self, tensor: str) -> str:
        return f"{self.names[tensor]}[{','.join(self.dims(tensor))}]"

    def cuts(self, tensor: str) -> Cuts:
        """Return the cuts of a tensor into the blocks that the sequence computes with."""
        dims, grid = self.dims(tensor), self.sequence.grid
        return even([self.operator.size(dim) for dim in dims], [grid[dim] for dim in dims])


@lru_cache(maxsize=1024)
def lowered(sequence: Sequence, operator: Linear, phases: Phases) -> Program:
    """Return the program of some phases of one linear operator; it is lowered once."""
    return lower(sequence, operator, phases)
