"""Text of the page of the paper's evaluation: paragraphs, tables, deviations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from textwrap import fill


def report(text: str) -> str:
    """Print on the terminal what is computed next, and return it."""
    print(text, file=sys.stderr, flush=True)
    return text


def words(text: str) -> str:
    """A paragraph in lines of the width of the other pages."""
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], align: str = "--:") -> str:
    """A table, the first column to the left and the others, which are numbers, to the right."""
    heads = list(heads)
    lines = [heads, ["---", *[align] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def off(ours: float, printed: float) -> str:
    """By how much a ratio is off, in percent of the paper's."""
    return f"{100 * (ours / printed - 1):+.0f}%"
