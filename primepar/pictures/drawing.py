"""A picture as text and as SVG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from primepar.files import check_ending, write_text


@dataclass(frozen=True, repr=False)
class Drawing:
    """A picture to print, to save, or to leave as the last line of a notebook's cell.

    `draw` makes the SVG when it is first needed.
    """

    text: str
    draw: Callable[[], str] = field(compare=False)

    @property
    def svg(self) -> str:
        """The picture as SVG, legible on light and on dark pages."""
        return self.draw()

    def save(self, path: str | Path) -> Self:
        """Write a `.svg` or a `.txt` file; return the drawing.

        Raises `TargetError` for another ending, `PrimeParError` if it cannot be written.
        """
        check_ending("save", path, svg="", txt="")
        write_text(Path(path), self.svg if Path(path).suffix == ".svg" else self.text)
        return self

    def __str__(self) -> str:
        return self.text.rstrip("\n")

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return self.svg
