"""The picture of chunks over the instructions of a rank."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

from primepar.partition.patrickstar import PatrickStar
from primepar.pictures.methods import Stay, residency_svg, stays

SMALL = PatrickStar(layers=2, hidden=1, rows=1, chunk=1, ranks=1)


def test_a_chunk_is_in_one_memory_at_a_time() -> None:
    known = stays(SMALL.program(), 0, SMALL.chunks)
    first, second, *_ = (stay for stay in known if stay.chunk == "W 0")
    assert first == Stay("W 0", 0, 1, on_device=False, moved=False)
    assert second.on_device
    assert second.moved
    for before, after in pairwise(known):
        if before.chunk == after.chunk:
            assert before.end <= after.first
            assert not after.moved or before.end == after.first
    assert {stay.chunk for stay in known} == set(SMALL.chunks.values())


def test_the_picture_has_a_bar_for_each_stay_and_for_each_transfer() -> None:
    known = stays(SMALL.program(), 0, SMALL.chunks)
    root = ElementTree.fromstring(residency_svg(SMALL.program(), 0, SMALL.chunks))
    tooltips = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(text.startswith("transfer") for text in tooltips) == sum(
        stay.moved for stay in known
    )
    assert len(tooltips) == len(known) + sum(stay.moved for stay in known)
