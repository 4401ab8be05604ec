"""Makes a block later, right before its first use, if that lowers the peak of its rank.

Between the compute that makes a block and its first other use the block only takes memory. If the
rank's peak is there, the computes that add to the block move down, to where the peak is lowest.
Frees of their operands move down with them. Messages, collectives and waits keep their order on
every rank.

The usual case is backward of a linear operator: dI is made before dW, and only dW is the last use
of the activation I. So I and dI are live together. With dI made after dW they are not:

    compute  dI += dO * W              compute  dW += I * dO
    free     W                         free     I
    compute  dW += I * dO       ->     compute  dI += dO * W
    free     I                         free     W
    free     dO                        free     dO

Why it is correct: no compute passes an instruction that uses the block, or that changes one of the
operands. So every instruction reads the same data as before. And no deadlock arises: computes are
local, and everything that communicates stays in its order.

A peak is lowered while that is possible; the order below the peak stays. A block that is made
later hides fewer transfers before it, and more of those after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from primepar.passes.block_uses import Rank, UsedBlocks, followed
from primepar.passes.liveness import LiveBlocks, Size, live_sizes
from primepar.schedule.program import Compute, Free, Instruction, Program
from primepar.schedule.program_uses import initial_blocks

Nodes = tuple[Instruction, ...]
Followed = list[tuple[Instruction, UsedBlocks]]
Totals = tuple[int, ...]
"""Elements at the start of a list and after each of its instructions."""


def make_late(program: Program) -> Program:
    """Return the program with blocks made later where that lowers the peak of a rank."""
    late, _ = made_late(program, [(0,) * (1 + len(nodes)) for nodes in program.programs])
    return late


def made_late(program: Program, more: Sequence[Totals]) -> tuple[Program, tuple[Totals, ...]]:
    """Return the program as `make_late` does, if more is live than its own blocks.

    `more` has, for every rank, the elements that are live in addition at the start and after each
    of its instructions; it is returned for the new order.
    """
    size = live_sizes(program)
    by_rank = zip(program.programs, initial_blocks(program), more, strict=True)
    lowered = [
        _Lowered(size, Rank(number), initial).lowered(nodes, more_of_rank)
        for number, (nodes, initial, more_of_rank) in enumerate(by_rank)
    ]
    programs = tuple(nodes for nodes, _ in lowered)
    if programs != program.programs:
        program = replace(program, programs=programs)
    return program, tuple(added for _, added in lowered)


class _Delay(NamedTuple):
    """What the instructions from `start` to `end` become, and their largest live total.

    `more` is what is live in addition after each of them: after those that are delayed, what is at
    the end.
    `passed` is the largest total of those that come before the delayed ones.
    """

    start: int
    end: int
    nodes: Nodes
    more: Totals
    passed: int
    peak: int


class _Lowered:
    """Lowers the peak of one rank's list."""

    def __init__(self, size: Size, rank: Rank, initial: Iterable[str]) -> None:
        self.size, self.rank, self.initial = size, rank, tuple(initial)

    def lowered(self, nodes: Nodes, more: Totals) -> tuple[Nodes, Totals]:
        """Return the list with the lowest peak that one delay after another reaches.

        Each delay lowers the first position of the highest total. So fewer positions are there, and
        the search ends. A list is taken only if no position is at the old peak.
        """
        totals = self._totals(nodes, more)
        lowest, least = (nodes, more), max(totals)
        while True:
            peak = max(totals)
            if peak < least:
                lowest, least = (nodes, more), peak
            delay = self._best(nodes, more, totals.index(peak) - 1, peak)
            if delay is None:
                return lowest
            nodes = (*nodes[: delay.start], *delay.nodes, *nodes[delay.end :])
            more = (*more[: delay.start + 1], *delay.more, *more[delay.end + 1 :])
            totals = self._totals(nodes, more)

    def _totals(self, nodes: Nodes, more: Totals) -> list[int]:
        """Return the live elements before the list and after each of its instructions."""
        live = LiveBlocks(self.size, self.rank, self.initial)
        totals = [live.total + more[0]]
        for node, added in zip(nodes, more[1:], strict=True):
            live.do(node)
            totals.append(live.total + added)
        return totals

    def _best(self, nodes: Nodes, more: Totals, place: int, peak: int) -> _Delay | None:
        """Return the delay that lowers the total at a position most; None if it stays there."""
        steps = list(followed(nodes, self.rank))
        best: _Delay | None = None
        for start, live in self._unused(steps[: place + 1]):
            for delay in self._delays(steps, more, start, place, live):
                if delay.peak < peak:
                    best, peak = delay, delay.peak
                if delay.passed >= peak:
                    break  # a longer delay passes these instructions too
        return best

    def _unused(self, steps: Followed) -> Iterable[tuple[int, frozenset[str]]]:
        """Return where blocks are made that are not used in these steps, except to add to them.

        With each position come the live blocks before it.
        """
        made, live = dict[str, tuple[int, frozenset[str]]](), set(self.initial)
        for place, (node, used) in enumerate(steps):
            block = node.accumulates if isinstance(node, Compute) else None
            for name in used.reads + used.changes:
                if name != block:
                    made.pop(name, None)
            if block is not None and block not in live:
                made[block] = place, frozenset(live)
            live.difference_update(used.gone)
            live.update(used.made)
        return made.values()

    def _delays(
        self, steps: Followed, more: Totals, start: int, place: int, live: frozenset[str]
    ) -> Iterator[_Delay]:
        """Yield the delays of the block that is made at `start`, to behind `place` and beyond."""
        block = steps[start][1].made[0]
        operands, kept, most = set[str](), 0, self.size(block) or 0
        delayed, passed = list[Instruction](), list[tuple[Instruction, int]]()
        for end, (node, used) in enumerate(steps[start:], start):
            if isinstance(node, Compute) and node.accumulates == block:
                delayed.append(node)
                operands.update(node.reads)
            elif isinstance(node, Free) and node.block in operands:
                delayed.append(node)
                kept += self.size(node.block) or 0
            elif is_in_the_way(used, block, operands):
                break
            else:
                passed.append((node, more[end + 1]))
            if kept >= most:
                return
            if end >= place and used.gone:
                yield self._delayed(start, end + 1, passed, delayed, live, more)
        else:
            end += 1
        if end > place:
            yield self._delayed(start, end, passed, delayed, live, more)

    def _delayed(
        self,
        start: int,
        end: int,
        passed: list[tuple[Instruction, int]],
        delayed: list[Instruction],
        live: frozenset[str],
        more: Totals,
    ) -> _Delay:
        totals = LiveBlocks(self.size, self.rank, live)
        first = totals.total + more[start]
        for node, added in passed:
            totals.do(node)
            first = max(first, totals.total + added)
        last = totals.peak(delayed) + more[end]
        nodes = (*(node for node, _ in passed), *delayed)
        added_after = (*(added for _, added in passed), *(more[end],) * len(delayed))
        return _Delay(start, end, nodes, added_after, first, max(first, last))


def is_in_the_way(used: UsedBlocks, block: str, operands: set[str]) -> bool:
    """Return whether computes that add to `block` from these operands cannot pass these uses."""
    return block in used.reads + used.changes or not operands.isdisjoint(used.changes)
