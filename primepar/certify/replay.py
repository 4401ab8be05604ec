"""Computes the contents of all blocks, by one run in the order of a certificate."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Sequence
from itertools import chain

from primepar.certify.block_contents import ZERO, Content, ProgramNames, reduced
from primepar.certify.matching import Matches, Place, Side, posts
from primepar.schedule import program as op
from primepar.schedule.program_uses import frees, initial_blocks, uses, writes


class Run:
    """The state of a run: the contents on every device and host, and of what is in flight.

    `wrong` collects (rank, instruction, block) of every read of a missing or wrong block.
    """

    def __init__(self, matches: Matches, names: ProgramNames) -> None:
        self.matches, self.names, self.program = matches, names, matches.program
        ranks = range(self.program.ranks)
        self.wrong: set[tuple[int, int, str]] = set()
        self._device: list[dict[str, Content]] = [{} for _ in ranks]
        self._host: list[dict[str, Content]] = [{} for _ in ranks]
        self._freed: list[set[str]] = [set() for _ in ranks]
        self._sent: dict[Side, list[Content]] = {}
        for rank, blocks in enumerate(self.program.initial or ()):
            for block in blocks:
                self._device[rank][block] = names.initial(block)
        for rank, blocks in enumerate(self.program.host_initial or ()):
            self._host[rank] |= {block: names.initial(block) for block in blocks}
        if self.program.initial is None:
            for block in chain.from_iterable(initial_blocks(self.program)):
                names.initial(block)

    def start(self, place: Place) -> None:
        """Read the blocks that an instruction uses; a local one writes its blocks at once."""
        rank, node = place[0], self.matches.node(place)
        for part, post in enumerate(posts(node) or (node,)):
            self._sent[*place, part] = [self._read(place, block) for block in uses(post, rank)]
        for block in frees(node):
            content = self._device[rank].pop(block, ZERO)
            self._freed[rank].add(block)
            if isinstance(node, op.Evict):
                self._host[rank][block] = content
        if not posts(node):
            self.finish(place)

    def finish(self, place: Place) -> None:
        """Write the blocks of an instruction, computed from what its partners sent."""
        node = self.matches.node(place)
        for part, post in enumerate(posts(node) or (node,)):
            side, blocks = (*place, part), writes(post, place[0])
            partners = self.matches.partners.get(side, (side,)) if blocks else ()
            # The sender is the first of the partners: where both are one rank, its content is kept.
            sent = {partner[0]: self._sent[partner] for partner in reversed(partners)}
            results = self._results(post, place, sent) if blocks else ()
            for block, content in zip(blocks, results, strict=False):
                self._device[place[0]][block] = content

    def end(self) -> None:
        """Check the blocks of `final`, and that no output of the grid is lost."""
        names, programs, place = self.names, self.program.programs, self.names.meaning.place
        pairs = ((self.program.final, self._device), (self.program.host_final, self._host))
        final = [
            (rank, block, memories[rank].get(block))
            for lists, memories in pairs
            for rank, blocks in enumerate(lists or ())
            for block in blocks
        ]
        for rank, block, held in final:
            if held is None or (place(block) is not None and not names.is_right(held, block)):
                self.wrong.add((rank, len(programs[rank]), block))
        taken = {place(block) for _, block, _ in final}
        for node in chain(*programs):
            if isinstance(node, op.Compute | op.Cut | op.Join):
                taken |= set(map(place, uses(node, 0)))
        for block in names.outputs():
            contents = [device[block] for device in self._device if block in device]
            arrives = any(names.is_right(content, block) for content in contents)
            if not (arrives if self.program.final is None else place(block) in taken):
                self.wrong.add((0, len(programs[0]), block))

    def _read(self, place: Place, block: str) -> Content:
        rank = place[0]
        if block not in self._device[rank]:
            missing = self.program.initial is not None or block in self._freed[rank]
            self.wrong |= {(*place, block)} if missing else set()
            self._device[rank][block] = (self.names.content if missing else self.names.initial)(
                block
            )
        return self._device[rank][block]

    def _results(
        self, node: op.Instruction, place: Place, given: dict[int, list[Content]]
    ) -> Sequence[Content]:
        """The contents of the blocks that an instruction writes, in order; `given` is by rank."""
        rank = place[0]
        match node:
            case op.Recv(peer=source) | op.IRecv(peer=source):
                return given[source]
            case _ if isinstance(node, op.Collective):
                return _collected(node, rank, given)
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
            expected = [template.block(cell) for template in phase.reads]
            if len(expected) != len(given):
                self.wrong.add((*place, node.accumulates))
            for block, content, name in zip(node.reads, given, expected, strict=False):
                if not self.names.is_right(content, name):
                    self.wrong.add((*place, block))
            added = [self.names.content(phase.writes.block(cell), self.names.token(phase, cell))]
        if node.scale_value != 1:
            added = [reduced("sum", added, node.scale_value)]
        held = self._device[place[0]].get(node.accumulates)
        contents = added if held is None else [held, *added]
        return reduced(phase.reduction if phase else "sum", contents)

    def _fetched(self, block: str, place: Place) -> Content:
        rank, held = place[0], self._host[place[0]].pop(block, None)
        known = block in self._device[rank] or block in self._freed[rank]
        if held is None and (self.program.initial is not None or known):
            self.wrong.add((*place, block))
        return self.names.content(block) if held is None else held

    def _parted(self, node: op.Cut | op.Join, place: Place, given: list[Content]) -> list[Content]:
        """Cut or join: the parts have the cells of the whole, each once; a join is uniform."""
        cells, held = self.names.cells, ChainMap(*given)
        pairs = zip(given, uses(node, place[0]), strict=True)
        fitting = all(
            not content or content.keys() == set(cells(block)) for content, block in pairs
        )
        filled = Counter(chain(*map(cells, node.blocks))) == Counter(cells(node.block))
        alike = len(set(map(bool, given))) == 1 and self.names.is_uniform(held)
        if not (fitting and filled and (alike or isinstance(node, op.Cut))):
            self.wrong.add((*place, node.block))
        blocks = writes(node, place[0]) if fitting and filled else ()
        return [{cell: held[cell] for cell in cells(block) if cell in held} for block in blocks]


def _collected(
    node: op.Collective, rank: int, given: dict[int, list[Content]]
) -> Sequence[Content]:
    """The contents of the blocks that a member of a collective gets, in order."""
    index = node.group.index(rank)
    sent = [given[member] for member in node.group]
    match node:
        case op.Broadcast(root=root):
            return given[root]
        case op.Scatter(root=root):
            return [given[root][index]]
        case op.AllReduce() | op.Reduce():
            return [_reduced(node, list(contents)) for contents in zip(*sent, strict=True)]
        case op.AllGather() | op.Gather():
            return [contents[0] for contents in sent]
        case op.AllToAll():
            return [contents[index] for contents in sent]
        case op.ReduceScatter():
            return [_reduced(node, [contents[index] for contents in sent])]
        case _:
            return ()


def _reduced(node: op.AllReduce | op.Reduce | op.ReduceScatter, contents: list[Content]) -> Content:
    return reduced(node.reduction, contents, node.scale_value)
