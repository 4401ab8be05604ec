"""The picture of chunks over the instructions of a rank, and the table of limits."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from xml.etree import ElementTree

from benchmarks.device_memory import PICTURED, lines, measure, step_program
from primepar.partition.patrickstar import PatrickStar
from primepar.passes.offload import moved_elements
from primepar.pictures.residency import Stay, residency_svg, stays

SMALL = PatrickStar(layers=2, hidden=1, rows=1, chunk=1, ranks=1)


def test_stays_have_the_memory_of_each_chunk_and_its_instructions() -> None:
    program = SMALL.program()
    known = stays(program, 0, SMALL.chunks)
    first = [stay for stay in known if stay.chunk == "W 0"]
    assert first[0] == Stay("W 0", 0, 1, on_device=False, moved=False)
    assert first[1].on_device
    assert first[1].moved
    for before, after in pairwise(known):
        if before.chunk == after.chunk:
            assert before.end <= after.first  # a chunk is in one memory at a time
            assert not after.moved or before.end == after.first
    assert {stay.chunk for stay in known} == set(SMALL.chunks.values())


def test_the_picture_has_a_bar_for_each_stay_and_a_mark_for_each_transfer() -> None:
    program = SMALL.program()
    known = stays(program, 0, SMALL.chunks)
    root = ElementTree.fromstring(residency_svg(program, 0, SMALL.chunks))
    names = [child.tag.rpartition("}")[2] for child in root]
    assert names.count("rect") == len(known) + 2
    assert names.count("path") == sum(stay.moved for stay in known) + 2


def test_the_table_has_the_same_loss_within_every_limit() -> None:
    rows = [measure(PICTURED, 2, share) for share in (None, Fraction(1, 2), Fraction(1, 3))]
    assert len({row.loss for row in rows}) == 1
    assert rows[0].limit is None
    assert rows[0].moved == 0 < rows[1].moved < rows[2].moved
    assert all(row.peak <= row.limit for row in rows[1:] if row.limit is not None)
    assert rows[0].simulated < rows[1].simulated < rows[2].simulated
    assert lines(rows, PICTURED)[2].split()[0] == "none"
    third = step_program(PICTURED, 2, Fraction(1, 3))
    assert rows[2].moved == 4 * moved_elements(third)[0]
