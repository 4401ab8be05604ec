"""Adds a received partial sum right before the first use of the whole sum.

The addition moves down with the free of the scratch block that it reads, past all instructions that
do not use the sum. So `overlap` waits for the partial sum there, and not before the products in
between: a sum of dI that `partial-sums` made messages of travels during the product dW.

    irecv    dI' <- 1                        irecv    dI' <- 1
    isend    dI[1] -> 1                      isend    dI[1] -> 1
    wait     dI'                             wait     dI'
    compute  dI += dI'                ->     compute  dW += I * dO
    free     dI'                             compute  dI += dI'
    compute  dW += I * dO                    free     dI'

Why it is correct: no addition passes an instruction that uses the sum or the scratch block. The
scratch block lives longer; where the peak of the rank would rise, its addition comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from primepar.passes.block_uses import Rank, RankList, UsedBlocks, followed
from primepar.passes.liveness import LiveBlocks, sizes_of
from primepar.schedule.program import Compute, Free, Instruction, Program
from primepar.schedule.program_uses import initial_blocks


def add_late(program: Program) -> Program:
    """Return the program with additions of scratch blocks as late as data and memory allow."""
    size, initial = sizes_of(program), initial_blocks(program)
    programs = []
    for number, nodes in enumerate(program.programs):
        rank, given = Rank(number), initial[number]
        peak = LiveBlocks(size, rank, given).peak(nodes)
        programs.append(
            tuple(
                _delayed(nodes, RankList(nodes, rank, given), LiveBlocks(size, rank, given), peak)
            )
        )
    lists = tuple(programs)
    return program if lists == program.programs else replace(program, programs=lists)


def _delayed(
    nodes: Sequence[Instruction], line: RankList, live: LiveBlocks, peak: int
) -> Iterator[Instruction]:
    """Yield the instructions of one rank, each held addition before the first use of its sum."""
    held: dict[Compute, Free] = {}
    frees = set[int]()
    for place, (node, used) in enumerate(followed(nodes, line.rank)):
        if place in frees:
            continue
        for addition in list(held):
            if _uses(used, addition) or live.after(node) > peak:
                yield from _done((addition, held.pop(addition)), live)
        free = _free_of(line, place, node)
        if free is None:
            yield from _done((node,), live)
        else:
            assert isinstance(node, Compute)
            frees.add(free)
            held[node] = Free(node.reads[0])
    for addition, last in held.items():
        yield from _done((addition, last), live)


def _uses(used: UsedBlocks, addition: Compute) -> bool:
    """Return whether an instruction uses the sum or the operand of an addition."""
    return not {*addition.reads, addition.accumulates}.isdisjoint(used.reads + used.changes)


def _free_of(line: RankList, place: int, node: Instruction) -> int | None:
    """Return where the operand of an addition is freed, if that is its next use; else None."""
    if not isinstance(node, Compute) or node.phase is not None or len(node.reads) > 1:
        return None
    after = line.after(node.reads[0], place)
    is_last = after is not None and line.nodes[after] == Free(node.reads[0])
    return after if is_last else None


def _done(nodes: Iterable[Instruction], live: LiveBlocks) -> Iterator[Instruction]:
    for node in nodes:
        live.do(node)
        yield node
