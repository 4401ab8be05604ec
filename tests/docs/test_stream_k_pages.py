"""The page and the pictures of Stream-K are what the schedule and the lemmas state."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from render_stream_k import IMAGES, lemma_table, pictures, usage

from primepar.partition.work_ranges import VARIANTS, WorkSplit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stream-k.md"


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
