"""CONTRIBUTING and the pages name only files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = ("primepar", "reference", "verify", "tests", "tutorials", "benchmarks", "docs")
NAMED = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./*-]*)`")
MADE = ("docs/cases", "docs/methods", "docs/tutorials", "tutorials/NN_", "tutorials/exercises/")
"""Made by `make docs`, or with NN for a number."""


def missing(text: str) -> list[str]:
    """The paths in a text that do not exist."""
    names = dict.fromkeys(NAMED.findall(text))
    return [
        name for name in names if not name.startswith(MADE) and not any(ROOT.glob(name.rstrip("/")))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []


def test_a_path_that_does_not_exist_is_seen() -> None:
    assert missing("`verify/program.py` and `verify/nothing.py`") == ["verify/nothing.py"]
