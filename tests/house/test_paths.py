"""CONTRIBUTING and the pages name only files, folders and Python names that exist."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = ("primepar", "reference", "verify", "tests", "tutorials", "benchmarks", "docs")
NAMED = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./*-]*)`")
SYMBOL = re.compile(r"`(primepar(?:\.\w+)+)(?:\(\))?`")
MADE = ("docs/cases", "docs/methods", "docs/tutorials", "tutorials/NN_", "tutorials/exercises/")
"""Made by `make docs`, or with NN for a number."""


def missing(text: str) -> list[str]:
    """The paths in a text that do not exist."""
    names = dict.fromkeys(NAMED.findall(text))
    return [
        name for name in names if not name.startswith(MADE) and not any(ROOT.glob(name.rstrip("/")))
    ]


def unknown(text: str) -> list[str]:
    """The names of modules, classes and functions in a text that cannot be imported."""
    names = []
    for name in dict.fromkeys(SYMBOL.findall(text)):
        try:
            resolve_name(name)
        except (AttributeError, ImportError):
            names.append(name)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_and_name_on_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert (missing(text), unknown(text)) == ([], [])


def test_one_that_does_not_exist_is_seen() -> None:
    assert missing("`verify/program.py` and `verify/nothing.py`") == ["verify/nothing.py"]
    assert unknown("`primepar.verify.program.nothing`, `primepar.lower()`, `primepar.none.of`") == [
        "primepar.verify.program.nothing", "primepar.none.of",
    ]  # fmt: skip
