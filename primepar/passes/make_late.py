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

from primepar.passes.block_uses import RankList, Size, UsedBlocks, rank_lists, with_lists
from primepar.passes.liveness import live_sizes
from primepar.schedule.program import Compute, Free, Program

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
    lowered = [
        _lowered(line, size, more_of_rank)
        for line, more_of_rank in zip(rank_lists(program), more, strict=True)
    ]
    made = with_lists(program, (line.nodes for line, _ in lowered))
    return made, tuple(added for _, added in lowered)


class _Delay(NamedTuple):
    """Instructions that move down to `end`: the computes of a block, the frees of its operands.

    `passed` is the largest total up to the last instruction that comes before them, `peak` also
    with them. Totals above the list, `delay` from 1 to 4: I 4, W 2, dO 1, dI 4, dW 2 elements.

        compute dI  11                  compute  dW   9
        free    W    9                  free     I    5
        compute dW  11          ->      compute  dI   9 = 7 after the free of I, and W again
        free    I    7                  free     W    7
    """

    end: int
    places: frozenset[int]
    passed: int
    peak: int


def _lowered(line: RankList, size: Size, more: Totals) -> tuple[RankList, Totals]:
    """Return the list with the lowest peak that one delay after another reaches.

    Each delay lowers the first position of the highest total. So fewer positions are there, and
    the search ends. A list is taken only if no position is at the old peak.
    """
    lowest, least = (line, more), None
    while True:
        # Several rounds: each lowers one position. The list of the lowest peak so far is kept, as a
        # round may lower the first of two equal peaks and leave the second.
        totals = [live + added for live, added in zip(line.live(size), more, strict=True)]
        peak = max(totals)
        if least is None or peak < least:
            lowest, least = (line, more), peak
        delay = _best(line, size, totals)
        if delay is None:
            return lowest
        order = [*range(delay.end)]
        # False before True, and stable: up to `end` all that stays, and then all that moves, each
        # in its order.
        order.sort(key=delay.places.__contains__)
        order += range(delay.end, len(line.nodes))
        # While it is delayed, a block has what is live in addition at its new place.
        added = [delay.end if place in delay.places else place + 1 for place in order]
        more = (more[0], *(more[place] for place in added))
        line = RankList([line.nodes[place] for place in order], line.rank, line.initial)


def _best(line: RankList, size: Size, totals: list[int]) -> _Delay | None:
    """Return the delay that lowers the first highest total most; None if it stays."""
    peak = max(totals)
    place = totals.index(peak) - 1
    best: _Delay | None = None
    # Only a block that is there at the peak without being used takes memory for nothing.
    for start in _unused(line, place + 1):
        for delay in _delays(line, size, totals, start, place):
            if delay.peak < peak:
                best, peak = delay, delay.peak
            if delay.passed >= peak:
                break  # a longer delay passes these instructions too
    return best


def _unused(line: RankList, end: int) -> Iterable[int]:
    """Return where blocks are made that nothing uses up to `end`, except to add to them."""
    made, live = dict[str, int](), set(line.initial)
    for place, (node, used) in enumerate(zip(line.nodes[:end], line.uses, strict=False)):
        block = node.accumulates if isinstance(node, Compute) else None
        # A block is unused until anything but a sum into it names it.
        for name in used.names:
            if name != block:
                made.pop(name, None)
        if block is not None and block not in live:
            made[block] = place
        live.difference_update(used.gone)
        live.update(used.made)
    return made.values()


def _delays(
    line: RankList, size: Size, totals: list[int], start: int, place: int
) -> Iterator[_Delay]:
    """Yield the delays of the block that is made at `start`, to behind `place` and beyond."""
    block = line.uses[start].made[0]
    operands, delayed = set[str](), set[int]()
    kept, saved, passed, end = 0, size(block) or 0, totals[start], start
    for end in range(start, len(line.nodes)):
        node, used = line.nodes[end], line.uses[end]
        if isinstance(node, Compute) and node.accumulates == block:
            # All sums into the block move together, and so do frees of what they read.
            delayed.add(end)
            operands.update(node.reads)
        elif isinstance(node, Free) and node.block in operands:
            delayed.add(end)
            kept += size(node.block) or 0
        elif is_in_the_way(used, block, operands):
            break
        else:
            # Here the block is not there yet, and its operands still are.
            passed = max(passed, totals[end + 1] - saved + kept)
        # The operands that stay longer take as much as the block that comes later: dI of 4 elements
        # made late keeps W of 2, which gains 2; with W of 4 it would gain nothing.
        if kept >= saved:
            return
        if end >= place and used.gone:
            yield _Delay(end + 1, frozenset(delayed), passed, max(passed, totals[end + 1] + kept))
    else:
        end += 1
    if end > place:
        yield _Delay(end, frozenset(delayed), passed, max(passed, totals[end] + kept))


def is_in_the_way(used: UsedBlocks, block: str, operands: set[str]) -> bool:
    """Return whether computes that add to `block` from these operands cannot pass these uses."""
    return block in used.names or not operands.isdisjoint(used.changes)
