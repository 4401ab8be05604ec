"""What an instruction reads, writes and frees: the table, and the explorer that has its own."""

from __future__ import annotations

from typing import get_args

import pytest
from oracle.machine import Machine

from primepar.schedule import Program
from primepar.schedule import program as op
from primepar.schedule.effects import effects

PAIR, HALVES = (0, 1), ("x0", "x1")
EVERY: tuple[op.Instruction, ...] = (
    op.Compute(("a", "b"), "c", "forward", {"M": 0, "N": 0, "K": 0}),
    op.Compute(("a", "b"), "a"),
    op.Send(1, "a"),
    op.Recv(1, "a"),
    op.ISend(1, "a", request="q"),
    op.IRecv(1, "a", request="q"),
    op.Wait("q"),
    op.Group((op.Send(1, "a"), op.Recv(1, "b"))),
    op.AllReduce(PAIR, block="a", also=("b",)),
    op.Reduce(PAIR, block="a", root=0),
    op.Reduce(PAIR, block="a", root=1),
    op.Broadcast(PAIR, block="a", root=0),
    op.Broadcast(PAIR, block="a", root=1),
    op.AllGather(PAIR, block="a", blocks=HALVES),
    op.ReduceScatter(PAIR, blocks=HALVES, block="a"),
    op.AllToAll(PAIR, blocks=HALVES, into=("y0", "y1")),
    op.Gather(PAIR, block="a", root=0, blocks=HALVES),
    op.Gather(PAIR, block="a", root=1),
    op.Scatter(PAIR, block="a", root=0, blocks=HALVES),
    op.Scatter(PAIR, block="a", root=1),
    op.Barrier(PAIR),
    op.Alloc("a"),
    op.Free("a"),
    op.Evict("a"),
    op.Fetch("a"),
    op.Cut("a", HALVES),
    op.Cut("a", HALVES, in_place=True),
    op.Join(HALVES, "a"),
    op.Join(HALVES, "a", in_place=True),
)


def test_every_class_of_instruction_is_here() -> None:
    assert {type(node) for node in EVERY} == set(get_args(op.Instruction))


@pytest.mark.parametrize("node", EVERY, ids=str)
def test_the_explorer_touches_what_the_table_has(
    node: op.Instruction, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, changes = set[str](), set[str]()

    def touch(_: Machine, rank: int, read: tuple[str, ...], written: tuple[str, ...]) -> None:
        reads.update(read)
        changes.update(written)

    monkeypatch.setattr(Machine, "_touch", touch)
    Machine.of(Program("primepar-program", 1, 2, ((node,), ())), buffered=False).advance(0)
    of = effects(node, 0)
    # A sum reads the block that it is added to, and whatever is freed has to be there: the table
    # lists both once, among what changes.
    assert changes == {*of.writes, *of.frees}
    assert reads - changes == {*of.reads} - changes
