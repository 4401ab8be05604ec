"""The memories of the explorer's ranks, and the effect of local instructions on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

from oracle.contents import (
    ZERO,
    CellSums,
    combined,
    is_zero,
    piece,
    same,
    scaled,
    where,
    whole,
)
from oracle.names import BlockNames, Corner, cell_of
from oracle.state import RankState
from primepar.schedule.meaning import Box
from primepar.schedule.program import Alloc, Compute, Cut, Evict, Fetch, Free, Instruction, Join


@dataclass
class RankMemories:
    """The ranks, the cells with data from before the program, and the properties that failed."""

    names: BlockNames
    buffered: bool
    ranks: list[RankState]
    before: frozenset[tuple[str, Corner]] = frozenset()
    failed: frozenset[str] = field(default=frozenset(), kw_only=True)
    finished: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Blocks that were whole when something read them."""

    def _fail(self, *properties: str) -> None:
        self.failed |= set(properties)

    def _races(self, rank: int, block: str, write: bool) -> bool:
        in_flight = self.ranks[rank].in_flight.values()
        return any(block in post.writes or (write and block in post.reads) for post in in_flight)

    def _touch(self, rank: int, reads: Iterable[str], writes: Iterable[str]) -> None:
        wrong = any(self._races(rank, block, False) for block in reads)
        if wrong or any(self._races(rank, block, True) for block in writes):
            self._fail("races")

    def _write(self, rank: int, block: str, content: CellSums) -> None:
        self.ranks[rank].memory[block] = content
        self.ranks[rank].known.add(block)

    def _load_initial(self, rank: int, block: str) -> None:
        """Write a block's own data, as it was before the program."""
        self._note_before(block)
        self._write(rank, block, self.names.datum(block))

    def _load_host(self, rank: int, block: str) -> None:
        """The same in host memory."""
        self._note_before(block)
        self.ranks[rank].host[block] = self.names.datum(block)

    def _note_before(self, block: str) -> None:
        if self.names.maker(block) is not None:
            place = self.names.meaning.place(block)
            assert place is not None
            _, corners = self.names.cells(block)
            self.before |= {(place.tensor, corner) for corner in corners}

    def _read(self, rank: int, block: str, kind: str, excused: bool) -> CellSums:
        state = self.ranks[rank]
        if block not in state.memory:
            if self.names.program.initial is None and block not in state.known:
                self._load_initial(rank, block)
            else:
                self._fail(*(() if excused else (kind,)))
                self._write(rank, block, self.names.datum(block))
        return state.memory[block]

    def _take(self, rank: int, block: str) -> CellSums:
        """Read a block where nothing special is asked of it."""
        return self._read(rank, block, "placement", self._races(rank, block, False))

    def _local(self, rank: int, node: Instruction) -> None:
        match node:
            case Compute():
                self._compute(rank, node)
            case Alloc(block=block):
                self._touch(rank, (), (block,))
                self._write(rank, block, ZERO)
            case Free(block=block) | Evict(block=block):
                self._touch(rank, (), (block,))
                content = self._read(rank, block, "placement", self._races(rank, block, True))
                del self.ranks[rank].memory[block]
                if isinstance(node, Evict):
                    self.ranks[rank].host[block] = content
            case Fetch(block=block):
                self._touch(rank, (), (block,))
                self._fetch(rank, block)
            case Cut():
                self._cut(rank, node)
            case Join():
                self._join(rank, node)

    def _fetch(self, rank: int, block: str) -> None:
        state = self.ranks[rank]
        if block not in state.host:
            if self.names.program.initial is not None or block in state.known:
                self._fail("placement")
            state.host[block] = self.names.datum(block)
        self._write(rank, block, state.host.pop(block))

    def _used(self, rank: int, block: str) -> CellSums:
        """The same; notes whether the block is whole."""
        content = self._take(rank, block)
        if self.names.maker(block) is not None and same(content, self.required(block)):
            self.finished |= {block}
        return content

    # Products and sums

    def _compute(self, rank: int, node: Compute) -> None:
        state = self.ranks[rank]
        self._touch(rank, (*node.reads, node.accumulates), (node.accumulates,))
        if node.phase is None or node.sub_operator is None:
            added = [self._used(rank, block) for block in node.reads]
            reduction, summed = self.names.summed_by(node.accumulates), node.reads
        else:
            phase = self.names.meaning.phases[node.phase]
            self._operands(rank, node)
            added = [self.names.product(phase, cell_of(node.sub_operator))]
            reduction, summed = phase.reduction, (phase.writes.block(node.sub_operator),)
        elements = map(self.names.meaning.elements, (node.accumulates, *summed))
        if len(set(elements) - {None}) > 1:
            self._fail("placement")
        held = state.memory.get(node.accumulates)
        if node.scale_value != 1:
            added = [scaled(combined("sum", added), node.scale_value)]
        total = combined(reduction, added if held is None else [held, *added])
        self._write(rank, node.accumulates, total)

    def _operands(self, rank: int, node: Compute) -> None:
        """Compare the blocks that a product reads with those that its sub-operator requires."""
        assert node.phase is not None
        assert node.sub_operator is not None
        kind = self._kind(self.ranks[rank], node.phase)
        names = [
            template.block(node.sub_operator)
            for template in self.names.meaning.phases[node.phase].reads
        ]
        for block, name in zip(node.reads, names, strict=False):
            excused = self._races(rank, block, False)
            got, required = self._read(rank, block, kind, excused), self.required(name)
            if same(got, required):
                self.finished |= {name}
            elif not excused:
                unfinished = self.names.maker(name) and self.names.is_part(got, required)
                self._fail("completion" if unfinished else kind)
        if len(node.reads) != len(names):
            self._fail(kind)

    def required(self, block: str) -> CellSums:
        """The content that a block must hold."""
        return self.names.required(block, self.before)

    @staticmethod
    def _kind(state: RankState, phase: str) -> str:
        """What a wrong operand breaks: alignment in the first step of a later phase."""
        if phase != state.phase:
            state.aligning, state.phase = state.phase is not None, phase
        return "alignment" if state.aligning else "placement"

    # Cutting and joining

    def _cut(self, rank: int, node: Cut) -> None:
        self._touch(rank, (node.block,), (*node.blocks, *(node.block,) * node.in_place))
        content = self._used(rank, node.block)
        self._forget(rank, (node.block,) * node.in_place)
        boxes = self._boxes(node)
        if boxes is None or not self._is_of(content, node.block):
            self._fail("placement")
            return
        whole_box, *parts = boxes
        for block, box in zip(node.blocks, parts, strict=True):
            within = [(a - c, b - c) for (a, b), (c, _) in zip(box, whole_box, strict=True)]
            self._write(rank, block, ZERO if is_zero(content) else piece(content, within))

    def _join(self, rank: int, node: Join) -> None:
        self._touch(rank, node.blocks, (node.block, *node.blocks * node.in_place))
        contents = [self._used(rank, block) for block in node.blocks]
        self._forget(rank, node.blocks * node.in_place)
        boxes = self._boxes(node)
        if boxes is None or not all(map(self._is_of, contents, node.blocks)):
            self._fail("placement")
            return
        whole_box, *parts = boxes
        placed = []
        for block, box, content in zip(node.blocks, parts, contents, strict=True):
            corner = tuple(
                first - start for (first, _), (start, _) in zip(box, whole_box, strict=True)
            )
            placed.append((corner, self.names.blank(block) if is_zero(content) else content))
        joined = whole(placed)
        if not self.names.is_uniform(joined, whole_box):
            self._fail("placement")
        self._write(rank, node.block, joined)

    def _is_of(self, content: CellSums, block: str) -> bool:
        """Whether all that a block holds is of its own place."""
        lengths, corners = self.names.cells(block)
        place = self.names.meaning.place(block)
        if is_zero(content) or place is None or content.lengths != lengths:
            return is_zero(content)
        cells = zip(content.cells, corners, strict=True)
        return all(where(atom) <= {(place.tensor, corner)}
                   for cell, corner in cells for atom, _ in cell)  # fmt: skip

    def _forget(self, rank: int, blocks: Iterable[str]) -> None:
        """Remove blocks whose memory another block now uses."""
        for block in blocks:
            self.ranks[rank].memory.pop(block, None)

    def _boxes(self, node: Cut | Join) -> list[Box] | None:
        """The box of the whole block, then those of its parts; None unless they fill it.

        A part of another tensor is none.
        """
        places = [self.names.meaning.place(block) for block in (node.block, *node.blocks)]
        boxes = [place.box for place in places if place is not None]
        of = {(place.tensor, len(place.box)) for place in places if place is not None}
        if len(boxes) < len(places) or len(of) > 1:
            return None
        whole_box, *parts = boxes
        ends = [sorted({end for box in parts for end in box[dim]}) for dim in range(len(whole_box))]
        filled = [corner for box in parts for corner in _corners(ends, box)]
        once = len(set(filled)) == len(filled)
        return boxes if once and set(filled) == set(_corners(ends, whole_box)) else None


def _corners(cuts: list[list[int]], box: Box) -> list[Corner]:
    """The first elements of the cells of a box, which is cut where any box begins or ends."""
    inside = [
        [box[dim][0], *(cut for cut in positions if box[dim][0] < cut < box[dim][1])]
        for dim, positions in enumerate(cuts)
    ]
    return list(product(*inside))
