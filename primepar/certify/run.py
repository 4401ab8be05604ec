"""A program, run once in the order of its certificate: what do its blocks hold?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from primepar.certify.contents import ZERO, Content, cut, fits, join, reduced
from primepar.certify.flow import Flow, Place, Side, posts
from primepar.certify.names import Names
from primepar.schedule import program as op
from primepar.schedule.program_uses import uses, writes

Stretch = tuple[int, int, int, range]
"""(level at which it begins, rank, the instruction that returns then or -1, what is started)."""


class Run:
    """`wrong` collects (rank, instruction, block) of every read of what is not there, or wrong."""

    def __init__(self, flow: Flow, names: Names) -> None:
        self.flow, self.names, self.program = flow, names, flow.program
        ranks = range(self.program.ranks)
        self.wrong: set[tuple[int, int, str]] = set()
        self._device: list[dict[str, Content]] = [{} for _ in ranks]
        self._host: list[dict[str, Content]] = [{} for _ in ranks]
        self._known: list[set[str]] = [set() for _ in ranks]
        self._given: dict[Side, list[Content]] = {}
        self._posted: list[dict[str, int]] = [{} for _ in ranks]
        for rank, blocks in enumerate(self.program.initial or ()):
            for block in blocks:
                self._write(rank, block, names.own(block, bring=True))

    def follow(self, stretches: Iterable[Stretch]) -> None:
        """Run stretches in the order of their levels."""
        for _, rank, returning, started in sorted(stretches, key=lambda each: each[:2]):
            if returning >= 0:
                self._return(rank, returning)
            for index in started:
                self._start(rank, index)

    def end(self) -> None:
        """Look at what lies where at the end."""
        final = self.program.final
        ends = [len(nodes) for nodes in self.program.programs]
        for rank, blocks in enumerate(final or ()):
            for block in blocks:
                held, at = self._device[rank].get(block), self.names.meaning.place(block)
                if held is None or (at is not None and not self.names.is_right(held, block)):
                    self.wrong.add((rank, ends[rank], block))
        taken = {self.names.meaning.place(block) for block in self._taken()}
        for block in self.names.made():
            if final is None:
                holders = (memory[block] for memory in self._device if block in memory)
                arrives = any(self.names.is_right(held, block) for held in holders)
            else:
                arrives = self.names.meaning.place(block) in taken
            if not arrives:
                self.wrong.add((0, ends[0], block))

    def _taken(self) -> set[str]:
        """Blocks that are read, cut or joined, or listed in `final`."""
        taken = {block for blocks in self.program.final or () for block in blocks}
        for rank, nodes in enumerate(self.program.programs):
            for node in nodes:
                if isinstance(node, op.Compute | op.Cut | op.Join):
                    taken |= set(uses(node, rank))
        return taken

    def _write(self, rank: int, block: str, content: Content) -> None:
        self._device[rank][block] = content
        self._known[rank].add(block)

    def _read(self, rank: int, index: int, block: str) -> Content:
        if block not in self._device[rank]:
            bring = self.program.initial is None and block not in self._known[rank]
            if not bring:
                self.wrong.add((rank, index, block))
            self._write(rank, block, self.names.own(block, bring))
        return self._device[rank][block]

    def _take(self, rank: int, index: int, block: str) -> Content:
        self._read(rank, index, block)
        return self._device[rank].pop(block)

    def _start(self, rank: int, index: int) -> None:
        match node := self.flow.node((rank, index)):
            case op.Compute():
                self._compute(rank, index, node)
            case op.Alloc(block=block):
                self._write(rank, block, ZERO)
            case op.Free(block=block):
                self._take(rank, index, block)
            case op.Evict(block=block):
                self._host[rank][block] = self._take(rank, index, block)
            case op.Fetch(block=block):
                self._fetch(rank, index, block)
            case op.Cut() | op.Join():
                self._cut_or_join(rank, index, node)
            case op.Wait():
                pass
            case _:
                request = getattr(node, "request", None)
                if request is not None:
                    self._posted[rank][request] = index
                for part, post in enumerate(posts(node)):
                    held = [self._read(rank, index, block) for block in uses(post, rank)]
                    self._given[rank, index, part] = held

    def _return(self, rank: int, index: int) -> None:
        node = self.flow.node((rank, index))
        if isinstance(node, op.Wait):
            index = self._posted[rank].pop(node.request)
            node = self.flow.node((rank, index))
        for part, post in enumerate(posts(node)):
            blocks = writes(post, rank)
            if blocks:
                met = self.flow.met[rank, index, part]  # of a message its sender comes first
                given = {side[0]: self._given[side] for side in reversed(met)}
                for block, content in zip(blocks, _results(post, rank, given), strict=True):
                    self._write(rank, block, content)

    def _fetch(self, rank: int, index: int, block: str) -> None:
        if block not in self._host[rank]:
            if self.program.initial is not None or block in self._known[rank]:
                self.wrong.add((rank, index, block))
            self._host[rank][block] = self.names.own(block)
        self._write(rank, block, self._host[rank].pop(block))

    def _compute(self, rank: int, index: int, node: op.Compute) -> None:
        if node.phase is None or node.sub_operator is None:
            phase = self.names.meaning.maker(node.accumulates.rstrip("'"))
            added = [self._read(rank, index, block) for block in node.reads]
        else:
            phase, cell = self.names.meaning.phases[node.phase], node.sub_operator
            wanted = [template.block(cell) for template in phase.reads]
            if len(wanted) != len(node.reads):
                self.wrong.add((rank, index, node.accumulates))
            for block, want in zip(node.reads, wanted, strict=False):
                if not self.names.is_right(self._read(rank, index, block), want):
                    self.wrong.add((rank, index, block))
            added = [self.names.of(phase.writes.block(cell), self.names.token(phase, cell))]
        held = self._device[rank].get(node.accumulates)
        contents = added if held is None else [held, *added]
        self._write(rank, node.accumulates, reduced(phase.reduction if phase else "sum", contents))

    def _cut_or_join(self, rank: int, index: int, node: op.Cut | op.Join) -> None:
        held = [self._read(rank, index, block) for block in uses(node, rank)]
        parts = self.names.parts(node)
        boxes = [self.names.box(block) for block in uses(node, rank)]
        if parts is None or not all(map(fits, held, boxes)):
            self.wrong.add((rank, index, node.block))
        elif isinstance(node, op.Cut):
            for block, box in zip(node.blocks, parts, strict=True):
                self._write(rank, block, cut(held[0], box))
        else:
            whole = join(zip(held, parts, strict=True))
            if len(set(map(bool, held))) > 1 or not self.names.is_one_kind(whole):
                self.wrong.add((rank, index, node.block))
            self._write(rank, node.block, whole)


def _results(post: op.Instruction, rank: int, given: dict[int, list[Content]]) -> Sequence[Content]:
    """What a rank gets of what each rank gives, in the order of the blocks that it writes."""
    match post:
        case op.Recv(peer=peer) | op.IRecv(peer=peer):
            return given[peer]
        case op.Broadcast(root=root):
            return given[root]
        case op.AllReduce() | op.Reduce():
            return [reduced(post.reduction, [given[member][0] for member in post.group])]
        case op.AllGather(group=group):
            return [given[member][0] for member in group]
        case op.ReduceScatter(group=group, reduction=reduction):
            own = group.index(rank)
            return [reduced(reduction, [given[member][own] for member in group])]
        case op.AllToAll(group=group):
            return [given[member][group.index(rank)] for member in group]
        case _:
            return ()
