"""Computes what every block holds, by one symbolic run in the order of the wait graph.

Every product is a summand of its own, and so is every input block. A block holds a sum of summands;
a reduction by max or min makes an extremum of sums. Every read is a claim: the block holds what its
name requires. For example, after `O += I[0]*W[0]` on ranks 0 and 1 and an all-reduce of O, each
rank holds the sum of two products. If one rank computed both, the sum counts one of them twice.
With scale 1/2 on the all-reduce, each rank holds one half of each product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from primepar.schedule.meaning import Meaning, Phase
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Gather,
    Join,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
)
from primepar.schedule.program_uses import initial_blocks
from primepar.verify.deadline import in_time
from primepar.verify.program.contents import (
    ZERO,
    Content,
    Sum,
    Summand,
    cut,
    fits,
    joined,
    parts_of,
    reduced,
)
from primepar.verify.program.coverage import sub_operator_text
from primepar.verify.program.expected import Expected, fills
from primepar.verify.program.matching import COLLECTIVES, Matching, MessageEnd, Operation, place
from primepar.verify.program.races import touched
from primepar.verify.program.wait_order import Stretch

ON_HOST = "in host memory"
OPERANDS = "and nothing but these"
SIZE = "of its size"
GONE = "after it was freed"
UNFETCHED = "before it is fetched"
SHORT = 64
"""The deadline is checked between this many instructions."""


class Written(NamedTuple):
    """A content that an instruction computed and wrote to a block."""

    operation: Operation
    block: str
    content: Content
    part: Summand | None = None
    """The product that it added, if it was one."""


@dataclass(frozen=True)
class Broken:
    """A place where `block` does not hold the data of `want`; `got` is None if it is absent."""

    property: str
    where: str
    block: str
    got: Sum | None
    want: str
    """The block whose data is needed."""
    purpose: str = ""
    """The sub-operator that reads it, or which other condition fails."""


class SymbolicRun:
    """Runs a program on symbolic contents; `device[rank]` maps the blocks of a rank at the end."""

    def __init__(self, meaning: Meaning, flow: Matching, racing: set[tuple[int, int, str]]) -> None:
        program = meaning.program
        self.program, self.flow = program, flow
        self.expected = Expected(meaning)
        self.broken: list[Broken] = []
        self._order: Sequence[Stretch] = ()
        self._noted: list[Written] | None = None
        self.device: list[dict[str, Content]] = [{} for _ in range(program.ranks)]
        self.host: list[dict[str, Content]] = [{} for _ in range(program.ranks)]
        self._freed: list[set[str]] = [set() for _ in range(program.ranks)]
        """Blocks that were freed or evicted on each rank."""
        self._sent: dict[MessageEnd, Content] = {}
        self._given: dict[Operation, list[Content]] = {}
        self._racing = racing
        self._first_step: list[tuple[str | None, bool]] = [(None, False)] * program.ranks
        self._results: dict[Operation, tuple[dict[int, list[Content]], list[Content]]] = {}
        for rank, blocks in enumerate(program.initial or ()):
            for block in blocks:
                self._load_initial(rank, block)
        for rank, blocks in enumerate(program.host_initial or ()):
            self.host[rank].update({block: self.expected.initial(block) for block in blocks})
        if program.initial is None:
            # A sum has the data that any rank uses before it writes it, whichever rank is first.
            for block in chain.from_iterable(initial_blocks(program)):
                self.expected.initial(block)

    def follow(self, order: Sequence[Stretch]) -> None:
        """Run stretches in an order in which each comes after everything that it waits for."""
        self._order = order
        hanging: list[Operation | None] = [None] * self.program.ranks
        for stretch in in_time(order):
            waited = hanging[stretch.rank]
            if waited is not None:
                self._finish(waited)
            operations = stretch.operations
            for operation in operations if len(operations) < SHORT else in_time(operations):
                self._start(operation)
            hanging[stretch.rank] = stretch.waiting

    def _start(self, operation: Operation) -> None:
        memory = self.device[operation.rank]
        for post in operation.starts:
            if post.sends:
                block = post.message.block
                held = memory.get(block)
                self._sent[post] = self._read(operation, block) if held is None else held
        if isinstance(operation.instruction, Compute):
            self._compute(operation, operation.instruction)
        elif not operation.starts:
            self._start_other(operation)

    def _start_other(self, operation: Operation) -> None:
        rank, node = operation.rank, operation.instruction
        match node:
            case Alloc(block=block):
                self._write(rank, block, ZERO)
            case Free(block=block):
                self._take(operation, block)
            case Evict(block=block):
                self.host[rank][block] = self._take(operation, block)
            case Fetch(block=block):
                self._write(rank, block, self._fetched(operation, block))
            case Cut() | Join():
                self._cut_or_join(operation, node)
            case _ if type(node) in COLLECTIVES:
                assert isinstance(node, Collective)
                self._given[operation] = [
                    self._read(operation, block) for block in touched(node, rank).reads
                ]

    @cached_property
    def written(self) -> list[Written]:
        """What every instruction wrote, from a second run: only a wrong sum needs it."""
        again = SymbolicRun(self.expected.meaning, self.flow, self._racing)
        again._noted = []
        again.follow(self._order)
        return again._noted

    def _note(
        self, operation: Operation, block: str, content: Content, part: Summand | None = None
    ) -> None:
        if self._noted is not None:
            self._noted.append(Written(operation, block, content, part))

    @cached_property
    def holders(self) -> dict[str, list[int]]:
        """Block -> ranks that have it at the end."""
        ranks: dict[str, list[int]] = {}
        for rank, memory in enumerate(self.device):
            for block in memory:
                ranks.setdefault(block, []).append(rank)
        return ranks

    def _finish(self, operation: Operation) -> None:
        memory = self.device[operation.rank]
        for post in operation.awaits:
            if not post.sends:
                assert post.partner is not None
                memory[post.message.block] = self._sent.pop(post.partner)
        call = None if operation.awaits else operation.call
        if call is not None:
            self._finish_collective(operation, call)
        phase, aligning = self._first_step[operation.rank]
        if aligning and type(operation.instruction) is not Send:
            self._first_step[operation.rank] = (phase, False)

    def _write(self, rank: int, block: str, content: Content) -> None:
        self.device[rank][block] = content

    def _take(self, operation: Operation, block: str) -> Content:
        content = self._read(operation, block)
        self._freed[operation.rank].add(block)
        del self.device[operation.rank][block]
        return content

    def _load_initial(self, rank: int, block: str) -> Content:
        self._write(rank, block, self.expected.initial(block))
        return self.device[rank][block]

    def _read(self, operation: Operation, block: str, kind: str = "placement") -> Content:
        """The content of a block; records a broken read if the block is absent."""
        rank, memory = operation.rank, self.device[operation.rank]
        if block in memory:
            return memory[block]
        if self.program.initial is None and block not in self._freed[rank]:
            return self._load_initial(rank, block)
        if (rank, operation.index, block) not in self._racing:
            left = UNFETCHED if block in self.host[rank] else ""
            why = GONE if block in self._freed[rank] else left
            self.broken.append(Broken(kind, place(operation), block, None, block, why))
        self._write(rank, block, self.expected.datum(block))
        return memory[block]

    def _fetched(self, operation: Operation, block: str) -> Content:
        host = self.host[operation.rank]
        if block in host:
            return host.pop(block)
        rank = operation.rank
        known = block in self.device[rank] or block in self._freed[rank]
        if self.program.initial is not None or known:
            where = place(operation)
            self.broken.append(Broken("placement", where, block, None, block, ON_HOST))
        return self.expected.datum(block)

    def _compute(self, operation: Operation, node: Compute) -> None:
        rank, part = operation.rank, None
        added: tuple[Content | Summand, ...]
        if node.phase is None or node.sub_operator is None:
            added = tuple(self._read(operation, block) for block in node.reads)
            phase = self.expected.meaning.maker(node.accumulates.rstrip("'"))
        else:
            phase = self.expected.meaning.phases[node.phase]
            self._operands(operation, phase, node.sub_operator, node.reads)
            part = self._part(phase, node.sub_operator)
            added = (part,)
        if node.scale != "1":
            added = (reduced("sum", added, node.scale_value),)
        before = self.device[rank].get(node.accumulates)
        if before is not None:
            added = (before, *added)
        total = reduced("sum" if phase is None else phase.reduction, added)
        self._write(rank, node.accumulates, total)
        self._note(operation, node.accumulates, total, part)

    def _part(self, phase: Phase, sub_operator: dict[str, int]) -> Summand:
        place = self.expected.meaning.place(phase.writes.block(sub_operator))
        assert place is not None
        return Summand((phase.name, phase.key(sub_operator)), place)

    def _operands(
        self, operation: Operation, phase: Phase, sub_operator: dict[str, int], reads: Sequence[str]
    ) -> None:
        kind = self._kind(operation.rank, phase.name)
        names = [template.block(sub_operator) for template in phase.reads]
        memory = self.device[operation.rank]
        for block, name in zip(reads, names, strict=False):
            held = memory.get(block)
            content = self._read(operation, block, kind) if held is None else held
            if content.holds(self.expected.sum(name)):
                continue
            if (operation.rank, operation.index, block) not in self._racing:
                purpose = f"{phase.name} sub-operator {sub_operator_text(sub_operator)}"
                unfinished = self._is_unfinished(content.parts, name)
                self.broken.append(
                    Broken(
                        "completion" if unfinished else kind,
                        place(operation), block, content.parts, name, purpose,
                    )
                )  # fmt: skip
        if len(reads) != len(names):
            both = " and ".join(names)
            self.broken.append(Broken(kind, place(operation), both, None, both, OPERANDS))

    def _is_unfinished(self, got: Sum, want: str) -> bool:
        """Whether these are summands of the needed sum, with some missing or too often."""
        required = parts_of(self.expected.sum(want))
        return self.expected.meaning.maker(want) is not None and set(parts_of(got)) <= set(required)

    def _kind(self, rank: int, phase: str) -> str:
        """Alignment in the first step of a phase that is not the rank's first, else placement.

        The first step ends where the rank next waits for a message or a collective.
        """
        current, aligning = self._first_step[rank]
        if phase != current:
            aligning = current is not None
            self._first_step[rank] = (phase, aligning)
        return "alignment" if aligning else "placement"

    def _cut_or_join(self, operation: Operation, node: Cut | Join) -> None:
        rank, meaning = operation.rank, self.expected.meaning
        whole = meaning.place(node.block)
        parts = [meaning.place(block) for block in node.blocks]
        given = node.blocks if isinstance(node, Join) else (node.block,)
        held = [self._read(operation, block).parts for block in given]
        if node.in_place:
            self._freed[rank].update(given)
            for block in given:
                self.device[rank].pop(block, None)
        boxes = [part.box for part in parts if part]
        if whole is None or len(boxes) < len(parts) or not fills(boxes, whole.box):
            self._refuse(operation, f"the parts of {node.block}, side by side", OPERANDS)
            return
        held_boxes = boxes if isinstance(node, Join) else [whole.box]
        for block, content, box in zip(given, held, held_boxes, strict=True):
            if not fits(content, box):
                self._refuse(operation, block, SIZE)
                return
        if isinstance(node, Cut):
            for block, box in zip(node.blocks, boxes, strict=True):
                self._write(rank, block, Content.flat(cut(held[0], whole.box, box)))
            return
        united = joined(zip(held, boxes, strict=True), whole.box)
        if united is None:
            self._refuse(operation, "parts of one kind", OPERANDS)
        whole_content = self.expected.datum(node.block) if united is None else Content.flat(united)
        self._write(rank, node.block, whole_content)

    def _refuse(self, operation: Operation, what: str, why: str) -> None:
        self.broken.append(Broken("placement", place(operation), what, None, what, why))

    def _finish_collective(self, operation: Operation, call: Operation) -> None:
        node = call.instruction
        assert isinstance(node, Collective)
        met = self.flow.matched_calls[call]
        if met[0] not in self._results:
            given = {member.rank: self._given[member] for member in met}
            self._results[met[0]] = (given, list(_shared(node, given)))
        given, shared = self._results[met[0]]
        for block, content in _results(node, operation.rank, given, shared):
            self._write(operation.rank, block, content)
            self._note(call, block, content)


def _shared(node: Collective, given: dict[int, list[Content]]) -> Iterator[Content]:
    """Yield the reduced contents, computed once for all members."""
    if isinstance(node, AllReduce | Reduce | ReduceScatter):
        for contents in zip(*(given[member] for member in node.group), strict=True):
            yield reduced(node.reduction, contents, node.scale_value)


def _results(
    node: Collective, rank: int, given: dict[int, list[Content]], shared: list[Content]
) -> Iterator[tuple[str, Content]]:
    """Yield the blocks that a member receives from a collective, with their contents."""
    member_index = node.group.index(rank)
    match node:
        case AllReduce(reduced=blocks):
            yield from zip(blocks, shared, strict=True)
        case Reduce(block=block, root=root) if rank == root:
            yield block, shared[0]
        case Broadcast(block=block, root=root):
            yield block, given[root][0]
        case AllGather(blocks=blocks):
            yield from zip(blocks, (given[member][0] for member in node.group), strict=True)
        case ReduceScatter(block=block):
            yield block, shared[member_index]
        case Gather(blocks=blocks) if rank == node.root:
            yield from zip(blocks, (given[member][0] for member in node.group), strict=True)
        case Scatter(block=block, root=root):
            yield block, given[root][member_index]
        case AllToAll(into=into):
            yield from zip(
                into, (given[member][member_index] for member in node.group), strict=True
            )
