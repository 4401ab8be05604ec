"""A program, run once in the order of its certificate: what do its blocks hold?"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Sequence
from itertools import chain

from primepar.certify.block_contents import ZERO, Content, ProgramNames, reduced
from primepar.certify.matching import Matches, Place, Side, posts
from primepar.schedule import program as op
from primepar.schedule.program_uses import frees, uses, writes


class Run:
    """`wrong` collects (rank, instruction, block) of every read of what is not there, or wrong."""

    def __init__(self, flow: Matches, names: ProgramNames) -> None:
        self.flow, self.names, self.program = flow, names, flow.program
        ranks = range(self.program.ranks)
        self.wrong: set[tuple[int, int, str]] = set()
        self._device: list[dict[str, Content]] = [{} for _ in ranks]
        self._host: list[dict[str, Content]] = [{} for _ in ranks]
        self._gone: list[set[str]] = [set() for _ in ranks]
        self._given: dict[Side, list[Content]] = {}
        for rank, blocks in enumerate(self.program.initial or ()):
            for block in blocks:
                self._device[rank][block] = names.bring(block)

    def start(self, place: Place) -> None:
        """Read all that an instruction takes; what is local makes its blocks at once."""
        rank, node = place[0], self.flow.node(place)
        for part, post in enumerate(posts(node) or (node,)):
            self._given[*place, part] = [self._read(place, block) for block in uses(post, rank)]
        for block in frees(node):
            content = self._device[rank].pop(block, ZERO)
            self._gone[rank].add(block)
            if isinstance(node, op.Evict):
                self._host[rank][block] = content
        if not posts(node):
            self.finish(place)

    def finish(self, place: Place) -> None:
        """Write all that an instruction makes of what is given to it."""
        node = self.flow.node(place)
        for part, post in enumerate(posts(node) or (node,)):
            side, blocks = (*place, part), writes(post, place[0])
            met = self.flow.met.get(side, (side,)) if blocks else ()
            given = {each[0]: self._given[each] for each in reversed(met)}  # a sender comes first
            made = self._made(post, place, given) if blocks else ()
            for block, content in zip(blocks, made, strict=False):
                self._device[place[0]][block] = content

    def end(self) -> None:
        """Check the blocks of `final`, and that no block that the grid makes is lost."""
        names, programs, place = self.names, self.program.programs, self.names.meaning.place
        final = [(rank, b) for rank, own in enumerate(self.program.final or ()) for b in own]
        for rank, block in final:
            held = self._device[rank].get(block)
            if held is None or (place(block) is not None and not names.is_right(held, block)):
                self.wrong.add((rank, len(programs[rank]), block))
        taken = {place(block) for _, block in final}
        for node in chain(*programs):
            if isinstance(node, op.Compute | op.Cut | op.Join):
                taken |= set(map(place, uses(node, 0)))
        for block in names.made():
            there = [held[block] for held in self._device if block in held]
            arrives = any(names.is_right(held, block) for held in there)
            if not (arrives if self.program.final is None else place(block) in taken):
                self.wrong.add((0, len(programs[0]), block))

    def _read(self, place: Place, block: str) -> Content:
        rank = place[0]
        if block not in self._device[rank]:
            gone = self.program.initial is not None or block in self._gone[rank]
            self.wrong |= {(*place, block)} if gone else set()
            self._device[rank][block] = (self.names.of if gone else self.names.bring)(block)
        return self._device[rank][block]

    def _made(
        self, node: op.Instruction, place: Place, given: dict[int, list[Content]]
    ) -> Sequence[Content]:
        """What a rank gets of what each gives, in the order of the blocks that it writes."""
        rank = place[0]
        match node:
            case op.Recv(peer=source) | op.IRecv(peer=source) | op.Broadcast(root=source):
                return given[source]
            case op.AllReduce() | op.Reduce():
                return [reduced(node.reduction, [given[member][0] for member in node.group])]
            case op.AllGather(group=group):
                return [given[member][0] for member in group]
            case op.ReduceScatter(group=group) | op.AllToAll(group=group):
                own = [given[member][group.index(rank)] for member in group]
                return own if isinstance(node, op.AllToAll) else [reduced(node.reduction, own)]
            case op.Compute():
                return [self._computed(node, place, given[rank])]
            case op.Cut() | op.Join():
                return self._parted(node, place, given[rank])
            case op.Alloc():
                return [ZERO]
            case op.Fetch(block=block):
                return [self._fetched(block, place)]
            case _:
                return ()

    def _computed(self, node: op.Compute, place: Place, given: list[Content]) -> Content:
        added = given
        if node.phase is None or node.sub_operator is None:
            phase = self.names.meaning.maker(node.accumulates.rstrip("'"))
        else:
            phase, cell = self.names.meaning.phases[node.phase], node.sub_operator
            wanted = [template.block(cell) for template in phase.reads]
            if len(wanted) != len(given):
                self.wrong.add((*place, node.accumulates))
            for block, content, want in zip(node.reads, given, wanted, strict=False):
                if not self.names.is_right(content, want):
                    self.wrong.add((*place, block))
            added = [self.names.of(phase.writes.block(cell), self.names.token(phase, cell))]
        held = self._device[place[0]].get(node.accumulates)
        contents = added if held is None else [held, *added]
        return reduced(phase.reduction if phase else "sum", contents)

    def _fetched(self, block: str, place: Place) -> Content:
        rank, held = place[0], self._host[place[0]].pop(block, None)
        known = block in self._device[rank] or block in self._gone[rank]
        if held is None and (self.program.initial is not None or known):
            self.wrong.add((*place, block))
        return self.names.of(block) if held is None else held

    def _parted(self, node: op.Cut | op.Join, place: Place, given: list[Content]) -> list[Content]:
        """The parts have the cells of the whole, each once, and a join is of one kind."""
        cells, held = self.names.cells, ChainMap(*given)
        pairs = zip(given, uses(node, place[0]), strict=True)
        fitting = all(not each or each.keys() == set(cells(block)) for each, block in pairs)
        filled = Counter(chain(*map(cells, node.blocks))) == Counter(cells(node.block))
        alike = len(set(map(bool, given))) == 1 and self.names.is_one_kind(held)
        if not (fitting and filled and (alike or isinstance(node, op.Cut))):
            self.wrong.add((*place, node.block))
        blocks = writes(node, place[0]) if fitting and filled else ()
        return [{cell: held[cell] for cell in cells(block) if cell in held} for block in blocks]
