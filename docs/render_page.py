"""The page that moves, of the whole library, as one file of the site.

Run by `make docs` before mkdocs. Writes docs/schedules.html, which is made anew and not kept in
git. It draws the events of emulated runs, so it takes some seconds.
"""

from __future__ import annotations

from pathlib import Path

from puzzles import puzzles

from primepar.api.page_data import library_data, packed
from primepar.files import write_text
from primepar.pictures.page_html import page_html

DOCS = Path(__file__).resolve().parent
MOST = 1_000_000
"""Characters of the page; with more, `primepar.api.page_data` packs fewer meshes."""
PAGE, PROVER = DOCS / "schedules.html", DOCS / "prover"


def main() -> None:
    """Write the page."""
    data = library_data()
    broken = list(puzzles())
    data["targets"] += [puzzle["map"] for puzzle in broken if "map" in puzzle]
    data["puzzles"] = packed(broken)
    if PROVER.exists():
        data["prover"] = PROVER.name
    page = page_html("primepar: schedules that move", data)
    if len(page) > MOST:
        raise SystemExit(f"{PAGE.name}: expected at most {MOST} characters, got {len(page)}")
    write_text(PAGE, page)


if __name__ == "__main__":
    main()
