"""The pictures and the table of lemmas of docs/stream-k.md.

    python docs/render_stream_k.py

writes docs/images/stream-k-*.svg and prints the table; a test compares both with what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from primepar.partition.work_ranges import VARIANTS, WorkSplit
from primepar.pictures.tile_rows import tile_rows_svg
from primepar.pictures.utilisation import utilisation_svg
from primepar.verify.every_size.stream_k import lemmas

IMAGES = Path(__file__).resolve().parent / "images"
WORKERS, TILES, ITERATIONS = 4, 9, 4
"""Of the small example."""
LARGE_TILES, LARGE_ITERATIONS = 256, 64
"""A product of 2,048 x 2,048 x 2,048 in tiles of 128 x 128 x 32."""


def pictures() -> dict[str, str]:
    """Return the text of each picture by its file name."""
    splits = [WorkSplit(WORKERS, TILES, ITERATIONS, variant) for variant in VARIANTS]
    return {
        "stream-k-tiles.svg": tile_rows_svg(splits),
        "stream-k-utilisation.svg": utilisation_svg(LARGE_TILES, LARGE_ITERATIONS),
    }


def lemma_table() -> Iterator[str]:
    """Yield the lines of the table of lemmas."""
    yield "| property | lemma | for all integers |"
    yield "|---|---|---|"
    for lemma in lemmas():
        yield f"| {lemma.property} | {lemma.name} | {lemma.statement} |"


if __name__ == "__main__":
    for name, text in pictures().items():
        (IMAGES / name).write_text(text, encoding="utf-8")
    print("\n".join(lemma_table()))
