"""The page and the pictures of Stream-K are what the schedule and the lemmas state."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from render_stream_k import IMAGES, lemma_table, pictures

from primepar.errors import MethodError
from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import VARIANTS, WorkSplit
from primepar.pictures.method_pictures import METHOD_PICTURES
from primepar.pictures.tile_rows import tile_rows_svg
from primepar.pictures.utilisation import usage

PAGE = Path(__file__).resolve().parent.parent / "docs" / "stream-k.md"


def test_the_page_has_every_lemma_and_the_pictures_are_kept() -> None:
    text = PAGE.read_text()
    assert "\n".join(lemma_table()) in text
    for name, picture in pictures().items():
        ElementTree.fromstring(picture)
        assert f"(images/{name})" in text
        assert (IMAGES / name).read_text() == picture, "run python docs/render_stream_k.py"


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_counted_is_the_formula_of_utilisation(variant: str) -> None:
    for workers in range(1, 133):
        split = WorkSplit(workers, 24, 5, variant)  # type: ignore[arg-type]
        waves = -(-24 // workers)
        formula = 24 / (workers * waves) if variant == "data-parallel" else (
            24 * 5 / (workers * (split.waves * 5 + split.share))
        )  # fmt: skip
        assert usage(split).useful == pytest.approx(100 * formula, rel=1e-12)


def test_a_picture_has_a_row_for_every_worker_and_a_dot_for_every_added_sum() -> None:
    picture = METHOD_PICTURES["stream-k"](StreamK(), [])
    assert [f">worker {worker}<" in picture for worker in range(5)] == [True] * 4 + [False]
    assert picture.count("<circle") == 3
    assert picture.count('fill="none"') == 3


def test_a_picture_of_too_many_workers_is_refused() -> None:
    with pytest.raises(MethodError) as caught:
        tile_rows_svg([WorkSplit(65, 70, 4)])
    assert str(caught.value) == (
        "stream-k: expected at most 64 workers in a picture, got 65: write workers=64"
    )
