"""What every block holds, followed symbolically along the witness order.

Every product is a symbol of its own and so is every input block; a block holds a linear expression
over them (a reduction by max or min adds a choice). On the way every read becomes a claim: the
data that is there equals the data that is wanted. Nothing is decided here but what is absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import z3

from primepar.schedule.operators import PRODUCTS, Phase, block_name, parse_block, tensor_dims
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Compute,
    Evict,
    Fetch,
    Free,
    Group,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Wait,
)
from primepar.verify.program_coverage import sub_operator_text
from primepar.verify.program_flow import Flow, Operation, Post, place
from primepar.verify.waits import Stretch

Value = Any
"""A Z3 real: what one block holds."""

ON_HOST = "in host memory"
TWO_OPERANDS = "nothing but two operands"
GONE = "after it was freed"


class Made(NamedTuple):
    """A value that an instruction made and put into a block."""

    where: str
    block: str
    value: Value
    product: Value = None
    """The product that it added, if it was one."""


@dataclass(frozen=True)
class Claim:
    """`block` must hold `want` there; `got` is None where no such block is."""

    property: str
    where: str
    block: str
    got: Value
    want: Value
    purpose: str = ""
    """The sub-operator that reads it, or what else is special about the read."""


def output_tensors(program: Program) -> frozenset[str]:
    """Tensors that the program sums up; all others are data from outside."""
    phases: set[Phase] = set(program.grid or {})
    for instructions in program.programs:
        phases |= {node.phase for node in instructions if isinstance(node, Compute) and node.phase}
    return frozenset(PRODUCTS[phase].writes for phase in phases)


def product_symbol(phase: Phase, sub_operator: dict[Any, int]) -> Value:
    """The product of one sub-operator."""
    return z3.Real(f"{phase} product {sub_operator_text(sub_operator)}")


class SymbolicRun:
    """Runs a program on symbols; `device[rank]` is what lies there at the end."""

    def __init__(self, program: Program, flow: Flow, racing: set[tuple[int, int, str]]) -> None:
        self.program, self.flow = program, flow
        self.outputs = output_tensors(program)
        self.claims: list[Claim] = []
        self.made: list[Made] = []
        self.device: list[dict[str, Value]] = [{} for _ in range(program.ranks)]
        self._host: list[dict[str, Value]] = [{} for _ in range(program.ranks)]
        self._known: list[set[str]] = [set() for _ in range(program.ranks)]
        self._sent: dict[Post, Value] = {}
        self._given: dict[Operation, list[Value]] = {}
        self._racing = racing
        self._first_step: list[tuple[Phase | None, bool]] = [(None, False)] * program.ranks
        self.from_before: set[str] = set()
        """Blocks that the program did not make: what is in them stays in their sums."""
        for rank, blocks in enumerate(program.initial or ()):
            for block in blocks:
                self._bring(rank, block)

    def datum(self, block: str) -> Value:
        """What an input block holds; of an output, what it may have held before."""
        name = parse_block(block)
        if name is None or name.tensor not in self.outputs:
            return z3.Real(block)
        return z3.Real(f"{block} from before")

    def follow(self, order: Sequence[Stretch]) -> None:
        """Run stretches in an order in which each comes after all that it waits for."""
        hanging: list[Operation | None] = [None] * self.program.ranks
        for stretch in order:
            waited = hanging[stretch.rank]
            if waited is not None:
                self._finish(waited)
            for operation in stretch.operations:
                self._start(operation)
            hanging[stretch.rank] = stretch.waiting

    def _start(self, operation: Operation) -> None:
        rank, node = operation.rank, operation.instruction
        if isinstance(node, Compute):
            self._compute(operation, node)
        elif isinstance(node, Collective):
            self._given[operation] = [
                self._read(operation, block) for block in _given_blocks(node, rank)
            ]
        elif isinstance(node, Alloc):
            self._write(rank, node.block, z3.RealVal(0))
        elif isinstance(node, Free | Evict):
            value = self._read(operation, node.block)
            self.device[rank].pop(node.block, None)
            if isinstance(node, Evict):
                self._host[rank][node.block] = value
        elif isinstance(node, Fetch):
            self._write(rank, node.block, self._fetched(operation, node.block))
        for post in operation.starts:
            if post.sends:
                self._sent[post] = self._read(operation, post.message.block)

    def _finish(self, operation: Operation) -> None:
        for post in operation.awaits:
            if not post.sends:
                self._write(post.rank, post.message.block, self._sent[self.flow.partner[post]])
        node, call = operation.instruction, operation.call
        if call is not None:
            self._finish_collective(operation, call)
        if isinstance(node, Wait | Recv | Group | Collective):
            phase, _ = self._first_step[operation.rank]
            self._first_step[operation.rank] = (phase, False)

    def _write(self, rank: int, block: str, value: Value) -> None:
        self.device[rank][block] = value
        self._known[rank].add(block)

    def _bring(self, rank: int, block: str) -> Value:
        self.from_before.add(block)
        self._write(rank, block, self.datum(block))
        return self.device[rank][block]

    def _read(self, operation: Operation, block: str, kind: str = "placement") -> Value:
        """What a block holds; where it is absent that is a claim that fails."""
        rank, memory = operation.rank, self.device[operation.rank]
        if block in memory:
            return memory[block]
        if self.program.initial is None and block not in self._known[rank]:
            return self._bring(rank, block)
        if (rank, operation.index, block) not in self._racing:
            why = GONE if block in self._known[rank] else ""
            self.claims.append(Claim(kind, place(operation), block, None, self.datum(block), why))
        self._write(rank, block, self.datum(block))
        return memory[block]

    def _fetched(self, operation: Operation, block: str) -> Value:
        host = self._host[operation.rank]
        if block in host:
            return host.pop(block)
        value = self.datum(block)
        if self.program.initial is not None or block in self._known[operation.rank]:
            self.claims.append(Claim("placement", place(operation), block, None, value, ON_HOST))
        return value

    def _compute(self, operation: Operation, node: Compute) -> None:
        rank = operation.rank
        if node.phase is None or node.sub_operator is None:
            product, value = None, z3.Sum([self._read(operation, block) for block in node.reads])
        else:
            self._operands(operation, node.phase, node.sub_operator, node.reads)
            product = value = product_symbol(node.phase, node.sub_operator)
        sum_so_far = self.device[rank].get(node.accumulates)
        total = value if sum_so_far is None else sum_so_far + value
        self._write(rank, node.accumulates, total)
        self.made.append(Made(place(operation), node.accumulates, total, product))

    def _operands(
        self, operation: Operation, phase: Phase, sub_operator: dict[Any, int], reads: Sequence[str]
    ) -> None:
        kind = self._kind(operation.rank, phase)
        purpose = f"{phase} sub-operator {sub_operator_text(sub_operator)}"
        wanted = [
            block_name(tensor, tuple(sub_operator[d] for d in tensor_dims(tensor)
                                     if d in sub_operator))
            for tensor in PRODUCTS[phase].reads
        ]  # fmt: skip
        for block, want in zip(reads, wanted, strict=False):
            got = self._read(operation, block, kind)
            if (operation.rank, operation.index, block) not in self._racing:
                claim = Claim(kind, place(operation), block, got, self.datum(want), purpose)
                self.claims.append(claim)
        if len(reads) != len(wanted):
            both = " and ".join(wanted)
            self.claims.append(Claim(kind, place(operation), both, None, None, TWO_OPERANDS))

    def _kind(self, rank: int, phase: Phase) -> str:
        """Alignment in the first step of a phase that is not the rank's first, else placement.

        The first step ends where the rank next waits for a message or a collective.
        """
        current, aligning = self._first_step[rank]
        if phase != current:
            aligning = current is not None
            self._first_step[rank] = (phase, aligning)
        return "alignment" if aligning else "placement"

    def _finish_collective(self, operation: Operation, call: Operation) -> None:
        node = call.instruction
        assert isinstance(node, Collective)
        given = {member.rank: self._given[member] for member in self.flow.meeting[call]}
        for block, value in _results(node, operation.rank, given):
            self._write(operation.rank, block, value)
            self.made.append(Made(place(call), block, value))


def _given_blocks(node: Collective, rank: int) -> tuple[str, ...]:
    """Blocks that a member brings to a collective."""
    match node:
        case AllReduce(block=block) | Reduce(block=block) | AllGather(block=block):
            return (block,)
        case Broadcast(block=block, root=root):
            return (block,) if rank == root else ()
        case ReduceScatter(blocks=blocks) | AllToAll(blocks=blocks):
            return blocks
        case _:
            return ()


def _results(
    node: Collective, rank: int, given: dict[int, list[Value]]
) -> Iterator[tuple[str, Value]]:
    """Blocks that a member gets from a collective, with what they hold then."""
    brought = [given[member] for member in node.group]
    own = node.group.index(rank)
    match node:
        case AllReduce(block=block, reduction=reduction):
            yield block, _reduced(reduction, [values[0] for values in brought])
        case Reduce(block=block, reduction=reduction, root=root) if rank == root:
            yield block, _reduced(reduction, [values[0] for values in brought])
        case Broadcast(block=block, root=root):
            yield block, given[root][0]
        case AllGather(blocks=blocks):
            yield from zip(blocks, (values[0] for values in brought), strict=True)
        case ReduceScatter(block=block, reduction=reduction):
            yield block, _reduced(reduction, [values[own] for values in brought])
        case AllToAll(into=into):
            yield from zip(into, (values[own] for values in brought), strict=True)


def _reduced(reduction: str, values: list[Value]) -> Value:
    if reduction == "sum":
        return z3.Sum(values)
    if reduction == "max":
        return reduce(lambda a, b: z3.If(a >= b, a, b), values)
    return reduce(lambda a, b: z3.If(a <= b, a, b), values)
