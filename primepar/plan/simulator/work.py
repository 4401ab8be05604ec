"""What the instructions of a program take on a device: operations, bytes, seconds, and memory.

A product is a sub-operator whose dims are each in two of its three blocks; it takes two operations
for each of its multiplications. What else a phase computes takes its bytes alone, unless its
operations are told. Every block that an instruction names goes once through the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum, auto
from fractions import Fraction
from math import isqrt, prod
from types import MappingProxyType
from typing import Any, get_args

from primepar.errors import ProgramError
from primepar.plan.cluster import BYTES, Cluster, Passing
from primepar.plan.simulator.links import Scalar
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    Alloc,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.program_uses import gets, gives, peak
from primepar.schedule.signature import Signature, multiplies

Operations = Mapping[str, Fraction]
"""Phase -> operations for each element that it writes."""


class InstructionKind(Enum):
    """What an instruction is for the device that runs it."""

    COMPUTES = auto()
    HOLDS = auto()
    """Memory alone: it takes no time."""
    WAITS = auto()
    GROUPS = auto()
    TRANSFERS = auto()


KINDS: dict[type[Instruction], InstructionKind] = {
    **dict.fromkeys((Compute, Cut, Join), InstructionKind.COMPUTES),
    **dict.fromkeys((Alloc, Free), InstructionKind.HOLDS),
    Wait: InstructionKind.WAITS,
    Group: InstructionKind.GROUPS,
    **dict.fromkeys((Send, Recv, ISend, IRecv, *get_args(Collective)), InstructionKind.TRANSFERS),
}


def kind(node: Instruction) -> InstructionKind:
    """What an instruction is; cut or joined in place, no data moves."""
    return InstructionKind.HOLDS if getattr(node, "in_place", False) else KINDS[type(node)]


class Work:
    """Amounts of one program in one data type on the devices of a cluster."""

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        dtype: str,
        operations: Operations,
        number: Callable[[Any], Scalar],
        passing: Mapping[str, Passing] = MappingProxyType({}),
    ) -> None:
        self.program, self.item = program, BYTES[dtype]
        self._operations = operations
        self._meaning = Meaning(program)
        self._sizes: dict[str, int] = {}
        self._products: dict[str, bool] = {}
        self._rate = number(cluster.rate(dtype).achieved)
        self._passing = {
            phase: (number(each.launch), number(each.memory_bandwidth))
            for phase, each in passing.items()
        }
        self._others = number(cluster.launch), number(cluster.memory_bandwidth)
        self._number = number

    def elements(self, block: str) -> int:
        """Elements of a block. Raises `ProgramError` where the program does not tell."""
        found = self._sizes.get(block)
        if found is None:
            found = self._meaning.elements(block)
            if found is None:
                raise ProgramError(
                    f"expected the elements of {block}, without which nothing tells how long it "
                    "takes, got none: write the shape of the operator, or the cuts of its tensor "
                    "in tensors"
                )
            self._sizes[block] = found
        return found

    def operations(self, node: Compute | Cut | Join) -> int:
        """Operations of an instruction, none but for products and what is told."""
        if not isinstance(node, Compute) or node.phase is None:
            return 0
        told = self._operations.get(node.phase)
        if told is not None:
            return round(told * self.elements(node.accumulates))
        if not self._is_product(node.phase):
            return 0
        # Each dim is in two of the three blocks.
        return 2 * isqrt(prod(map(self.elements, (*node.reads, node.accumulates))))

    def _is_product(self, phase: str) -> bool:
        if phase not in self._products:
            own = (self.program.phases or {}).get(phase)
            self._products[phase] = own is None or _is_product(own)
        return self._products[phase]

    def touched(self, node: Compute | Cut | Join) -> int:
        """Bytes of every block that an instruction names."""
        names = (
            (*node.reads, node.accumulates) if isinstance(node, Compute)
            else (*node.blocks, node.block)
        )  # fmt: skip
        return sum(map(self.elements, names)) * self.item

    def seconds(self, node: Compute | Cut | Join) -> Scalar:
        """The start of an operation, its operations and its bytes, one after the other."""
        launch, memory = self._passing.get(getattr(node, "phase", None) or "", self._others)
        passing = launch + self._number(self.touched(node)) / memory
        operations = self.operations(node)
        return passing + self._number(operations) / self._rate if operations else passing

    def peak(self, rank: int) -> int:
        """Most elements alive at once on a rank, buffers of posted receives included."""
        return peak(self.program, rank, self.elements)


def _is_product(signature: Signature) -> bool:
    """Whether a phase multiplies: by its kernel, or else where each dim is in two of its blocks."""
    if signature.kernel is not None:
        return multiplies(signature.kernel)
    dims = Counter(dim for each in signature.templates for dim in each.dims)
    return len(signature.reads) == 2 and set(dims.values()) <= {2}


def check_known(program: Program) -> None:
    """Raise `ProgramError` for a transfer to or from a host, of which clusters say nothing."""
    for rank, instructions in enumerate(program.programs):
        for at, node in enumerate(instructions):
            if isinstance(node, Fetch | Evict):
                raise ProgramError(
                    f"programs[{rank}][{at}]: expected no transfer to or from a host, as clusters "
                    f"have no links to hosts, got {type(node).__name__.lower()} {node.block}: "
                    "leave it out"
                )


def label(node: Instruction, rank: int) -> str:
    """The blocks that a transfer brings, or else gives."""
    if isinstance(node, Collective):
        return " ".join(gets(node, rank) or gives(node, rank))
    return str(getattr(node, "block", ""))
