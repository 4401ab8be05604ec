"""A program, run once in the order of its certificate: what do its blocks hold?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from primepar.certify.data import ZERO, Content, Data, cut, fits, join, reduced
from primepar.certify.flow import Flow, Place, Side, messages, touched
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
    Instruction,
    ISend,
    Join,
    Reduce,
    ReduceScatter,
    Send,
    Wait,
)

Stretch = tuple[int, int, int, range]
"""(level at which it begins, rank, the instruction that returns then or -1, what is started)."""


class Run:
    """`wrong` collects (rank, instruction, block) of every read of what is not there, or wrong."""

    def __init__(self, flow: Flow, data: Data) -> None:
        self.flow, self.data = flow, data
        ranks = flow.program.ranks
        self.device: list[dict[str, Content]] = [{} for _ in range(ranks)]
        self.wrong: set[tuple[int, int, str]] = set()
        self._host: list[dict[str, Content]] = [{} for _ in range(ranks)]
        self._known: list[set[str]] = [set() for _ in range(ranks)]
        self._sent: dict[Side, Content] = {}
        self._given: dict[Place, list[Content]] = {}
        self._posted: list[dict[str, int]] = [{} for _ in range(ranks)]
        for rank, blocks in enumerate(flow.program.initial or ()):
            for block in blocks:
                self._write(rank, block, data.own(block, bring=True))

    def follow(self, stretches: Sequence[Stretch]) -> None:
        """Run stretches in the order of their levels."""
        for _, rank, returning, started in sorted(stretches, key=lambda each: each[:2]):
            if returning >= 0:
                self._return(rank, returning)
            for index in started:
                self._start(rank, index)

    def end(self) -> None:
        """Look at what lies where at the end."""
        program, data = self.flow.program, self.data
        for rank, blocks in enumerate(program.final or ()):
            for block in blocks:
                held = self.device[rank].get(block)
                meant = data.meaning.place(block) is not None
                if held is None or (meant and not data.is_right(held, block)):
                    self.wrong.add((rank, len(program.programs[rank]), block))
        made = self._made()
        if program.final is not None:
            places = set(map(data.meaning.place, self._taken()))
            for block in made:
                if data.meaning.place(block) not in places:
                    self.wrong.add((0, len(program.programs[0]), block))
        else:
            for block in made:
                held_ = [memory[block] for memory in self.device if block in memory]
                if not any(data.is_right(content, block) for content in held_):
                    self.wrong.add((0, len(program.programs[0]), block))

    def _made(self) -> set[str]:
        """Blocks that the phases of the grid make."""
        return {
            phase.writes.block(cell)
            for phase in self.data.meaning.phases.values()
            if phase.grid is not None
            for cell in self.data.cells(phase)
        }

    def _taken(self) -> set[str]:
        """Blocks that are read, cut or joined, or listed in `final`."""
        taken = {block for blocks in self.flow.program.final or () for block in blocks}
        for node in (node for nodes in self.flow.program.programs for node in nodes):
            match node:
                case Compute(reads=blocks) | Join(blocks=blocks):
                    taken |= set(blocks)
                case Cut(block=block):
                    taken.add(block)
        return taken

    def _write(self, rank: int, block: str, content: Content) -> None:
        self.device[rank][block] = content
        self._known[rank].add(block)

    def _read(self, rank: int, index: int, block: str) -> Content:
        if block not in self.device[rank]:
            bring = self.flow.program.initial is None and block not in self._known[rank]
            if not bring:
                self.wrong.add((rank, index, block))
            self._write(rank, block, self.data.own(block, bring))
        return self.device[rank][block]

    def _start(self, rank: int, index: int) -> None:
        node = self.flow.node((rank, index))
        match node:
            case Compute():
                self._compute(rank, index, node)
            case Alloc(block=block):
                self._write(rank, block, ZERO)
            case Free(block=block):
                self._read(rank, index, block)
                del self.device[rank][block]
            case Evict(block=block):
                self._host[rank][block] = self._read(rank, index, block)
                del self.device[rank][block]
            case Fetch(block=block):
                if block not in self._host[rank]:
                    if self.flow.program.initial is not None or block in self._known[rank]:
                        self.wrong.add((rank, index, block))
                    self._host[rank][block] = self.data.own(block)
                self._write(rank, block, self._host[rank].pop(block))
            case Cut() | Join():
                self._cut_or_join(rank, index, node)
            case _:
                self._post(rank, index, node)

    def _post(self, rank: int, index: int, node: Instruction) -> None:
        request = getattr(node, "request", None)
        if request is not None and not isinstance(node, Wait):
            self._posted[rank][request] = index
        for part, message in enumerate(messages(node)):
            if isinstance(message, Send | ISend):
                self._sent[rank, index, part] = self._read(rank, index, message.block)
        if isinstance(node, Collective):
            reads = touched(node, rank).reads
            self._given[rank, index] = [self._read(rank, index, block) for block in reads]

    def _return(self, rank: int, index: int) -> None:
        node = self.flow.node((rank, index))
        if isinstance(node, Wait):
            index = self._posted[rank].pop(node.request)
            node = self.flow.node((rank, index))
        for part, message in enumerate(messages(node)):
            if not isinstance(message, Send | ISend):
                sent = self._sent[self.flow.partner[rank, index, part]]
                self._write(rank, message.block, sent)
        if isinstance(node, Collective):
            for block, content in self._results(rank, index, node):
                self._write(rank, block, content)

    def _results(self, rank: int, index: int, node: Collective) -> Iterator[tuple[str, Content]]:
        met = self.flow.meeting[rank, index]
        given = {place[0]: self._given[place] for place in met}
        lines = [given[member] for member in node.group]
        own, name = node.group.index(rank), str(met[0])
        match node:
            case AllReduce() | Reduce():
                total = reduced(node.reduction, [line[0] for line in lines], name)
                yield from ((block, total) for block in touched(node, rank).writes)
            case ReduceScatter(block=block, reduction=reduction):
                yield block, reduced(reduction, [line[own] for line in lines], f"{name} {own}")
            case Broadcast(block=block, root=root) if rank != root:
                yield block, given[root][0]
            case AllGather(blocks=blocks):
                yield from zip(blocks, (line[0] for line in lines), strict=True)
            case AllToAll(into=into):
                yield from zip(into, (line[own] for line in lines), strict=True)

    def _compute(self, rank: int, index: int, node: Compute) -> None:
        if node.phase is None or node.sub_operator is None:
            phase = self.data.maker(node.accumulates.rstrip("'"))
            added = [self._read(rank, index, block) for block in node.reads]
        else:
            phase = self.data.meaning.phases[node.phase]
            wanted = [template.block(node.sub_operator) for template in phase.reads]
            if len(wanted) != len(node.reads):
                self.wrong.add((rank, index, node.accumulates))
            for block, want in zip(node.reads, wanted, strict=False):
                if not self.data.is_right(self._read(rank, index, block), want):
                    self.wrong.add((rank, index, block))
            told = self.data.told(node.phase, node.sub_operator)
            added = [self.data.of(phase.writes.block(node.sub_operator), told)]
        held = self.device[rank].get(node.accumulates)
        contents = added if held is None else [held, *added]
        reduction = phase.reduction if phase else "sum"
        self._write(rank, node.accumulates, reduced(reduction, contents, f"{rank} {index}"))

    def _cut_or_join(self, rank: int, index: int, node: Cut | Join) -> None:
        parts = self.data.parts(node)
        given = node.blocks if isinstance(node, Join) else (node.block,)
        held = [self._read(rank, index, block) for block in given]
        if parts is None:
            self.wrong.add((rank, index, node.block))
            return
        whole = self.data.box(node.block)
        boxes = [box for _, box in parts] if isinstance(node, Join) else [whole]
        if not all(map(fits, held, boxes)):
            self.wrong.add((rank, index, node.block))
        elif isinstance(node, Cut):
            for block, box in parts:
                self._write(rank, block, cut(held[0], box))
        else:
            joined = join(zip(held, (box for _, box in parts), strict=True))
            if len({bool(content) for content in held}) > 1 or not self.data.is_one_kind(joined):
                self.wrong.add((rank, index, node.block))
            self._write(rank, node.block, joined)
