"""The ranks of the explorer's machine: their memories, and what local instructions do to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

from primepar.schedule.meaning import Box
from primepar.schedule.program import Alloc, Compute, Cut, Evict, Fetch, Free, Instruction, Join
from primepar.verify.explorer.contents import (
    ZERO,
    CellSums,
    combined,
    is_zero,
    piece,
    same,
    sizes,
    whole,
)
from primepar.verify.explorer.names import BlockNames, Corner, cell_of
from primepar.verify.explorer.state import RankState


@dataclass
class RankMemories:
    """The ranks, the cells that were there before the program, and what has failed."""

    names: BlockNames
    buffered: bool
    ranks: list[RankState]
    before: frozenset[tuple[str, Corner]] = frozenset()
    failed: frozenset[str] = field(default=frozenset(), kw_only=True)

    def _fail(self, *properties: str) -> None:
        self.failed |= set(properties)

    def _races(self, rank: int, block: str, write: bool) -> bool:
        flying = self.ranks[rank].flying.values()
        return any(block in each.writes or (write and block in each.reads) for each in flying)

    def _touch(self, rank: int, reads: Iterable[str], writes: Iterable[str]) -> None:
        wrong = any(self._races(rank, block, False) for block in reads)
        if wrong or any(self._races(rank, block, True) for block in writes):
            self._fail("races")

    def _write(self, rank: int, block: str, content: CellSums) -> None:
        self.ranks[rank].memory[block] = content
        self.ranks[rank].known.add(block)

    def _bring(self, rank: int, block: str) -> None:
        """Put a block's own data there, as it was before the program."""
        if self.names.maker(block) is not None:
            found = self.names.meaning.place(block)
            assert found is not None
            _, corners = self.names.cells(block)
            self.before |= {(found.tensor, corner) for corner in corners}
        self._write(rank, block, self.names.datum(block))

    def _read(self, rank: int, block: str, kind: str, excused: bool) -> CellSums:
        own = self.ranks[rank]
        if block not in own.memory:
            if self.names.program.initial is None and block not in own.known:
                self._bring(rank, block)
            else:
                self._fail(*(() if excused else (kind,)))
                self._write(rank, block, self.names.datum(block))
        return own.memory[block]

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
        own = self.ranks[rank]
        if block not in own.host:
            if self.names.program.initial is not None or block in own.known:
                self._fail("placement")
            own.host[block] = self.names.datum(block)
        self._write(rank, block, own.host.pop(block))

    # Products and sums

    def _compute(self, rank: int, node: Compute) -> None:
        own = self.ranks[rank]
        self._touch(rank, (*node.reads, node.accumulates), (node.accumulates,))
        if node.phase is None or node.sub_operator is None:
            added = [self._take(rank, block) for block in node.reads]
            reduction = self.names.summed_by(node.accumulates)
        else:
            phase = self.names.meaning.phases[node.phase]
            self._operands(rank, node)
            added = [self.names.product(phase, cell_of(node.sub_operator))]
            reduction = phase.reduction
        held = own.memory.get(node.accumulates)
        total = combined(reduction, added if held is None else [held, *added])
        self._write(rank, node.accumulates, total)

    def _operands(self, rank: int, node: Compute) -> None:
        """Compare what a product reads with what its sub-operator asks for."""
        assert node.phase is not None
        assert node.sub_operator is not None
        kind = self._kind(self.ranks[rank], node.phase)
        wanted = [
            template.block(node.sub_operator)
            for template in self.names.meaning.phases[node.phase].reads
        ]
        for block, want in zip(node.reads, wanted, strict=False):
            excused = self._races(rank, block, False)
            got, due = self._read(rank, block, kind, excused), self.due(want)
            if not excused and not same(got, due):
                unfinished = self.names.maker(want) and self.names.is_part(got, due)
                self._fail("completion" if unfinished else kind)
        if len(node.reads) != len(wanted):
            self._fail(kind)

    def due(self, block: str) -> CellSums:
        """What a block must hold."""
        return self.names.due(block, self.before)

    @staticmethod
    def _kind(own: RankState, phase: str) -> str:
        """What a wrong operand breaks: alignment in the first step of a later phase."""
        if phase != own.phase:
            own.aligning, own.phase = own.phase is not None, phase
        return "alignment" if own.aligning else "placement"

    # Cutting and joining

    def _cut(self, rank: int, node: Cut) -> None:
        self._touch(rank, (node.block,), (*node.blocks, *(node.block,) * node.in_place))
        content = self._take(rank, node.block)
        self._forget(rank, (node.block,) * node.in_place)
        boxes = self._boxes(node)
        if boxes is None or not _fits(content, boxes[0]):
            self._fail("placement")
            return
        own, *parts = boxes
        for block, box in zip(node.blocks, parts, strict=True):
            within = [(a - c, b - c) for (a, b), (c, _) in zip(box, own, strict=True)]
            self._write(rank, block, ZERO if is_zero(content) else piece(content, within))

    def _join(self, rank: int, node: Join) -> None:
        self._touch(rank, node.blocks, (node.block, *node.blocks * node.in_place))
        contents = [self._take(rank, block) for block in node.blocks]
        self._forget(rank, node.blocks * node.in_place)
        boxes = self._boxes(node)
        if boxes is None or not all(map(_fits, contents, boxes[1:])):
            self._fail("placement")
            return
        own, *parts = boxes
        placed = []
        for block, box, content in zip(node.blocks, parts, contents, strict=True):
            at = tuple(first - start for (first, _), (start, _) in zip(box, own, strict=True))
            placed.append((at, self.names.blank(block) if is_zero(content) else content))
        joined = whole(placed)
        if not self.names.is_one_kind(joined, own):
            self._fail("placement")
            joined = self.names.datum(node.block)
        self._write(rank, node.block, joined)

    def _forget(self, rank: int, blocks: Iterable[str]) -> None:
        """Their memory is another block's now."""
        for block in blocks:
            self.ranks[rank].memory.pop(block, None)

    def _boxes(self, node: Cut | Join) -> list[Box] | None:
        """The box of the whole block, then those of its parts; None unless they fill it."""
        places = [self.names.meaning.place(block) for block in (node.block, *node.blocks)]
        boxes = [found.box for found in places if found is not None]
        if len(boxes) < len(places) or len({len(box) for box in boxes}) > 1:
            return None
        own, *parts = boxes
        lines = [sorted({end for box in parts for end in box[dim]}) for dim in range(len(own))]
        filled = [corner for box in parts for corner in _corners(lines, box)]
        once = len(set(filled)) == len(filled)
        return boxes if once and set(filled) == set(_corners(lines, own)) else None


def _corners(lines: list[list[int]], box: Box) -> list[Corner]:
    """The cells of a box, between the lines at which boxes begin or end."""
    inside = [
        [box[dim][0], *(at for at in line if box[dim][0] < at < box[dim][1])]
        for dim, line in enumerate(lines)
    ]
    return list(product(*inside))


def _fits(content: CellSums, box: Box) -> bool:
    """Whether what a block holds is as large as the block."""
    return is_zero(content) or sizes(content) == tuple(end - first for first, end in box)
