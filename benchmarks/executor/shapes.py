"""The sizes of a benchmarked MLP: rows M and hidden h of h, 4h, h, on a number of ranks."""

from __future__ import annotations

import re

from msgspec import Struct

EXPANSION = 4
"""Columns between the two linear operators, over h."""
_TEXT = re.compile(r"mlp:M=(\d+),h=(\d+)")


class MlpShape(Struct, frozen=True):
    """An MLP on ranks: `rows` of `hidden` columns, `inner` columns between its operators."""

    ranks: int
    rows: int
    hidden: int

    @property
    def inner(self) -> int:
        """Columns between the two linear operators."""
        return EXPANSION * self.hidden

    def __str__(self) -> str:
        return f"mlp:M={self.rows},h={self.hidden} on {self.ranks} ranks"

    @classmethod
    def parse(cls, text: str, ranks: int) -> MlpShape:
        """Read `mlp:M=8192,h=512`. Raises `ValueError`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"expected a shape as in mlp:M=8192,h=512, got {text!r}")
        return cls(ranks, int(match[1]), int(match[2]))


SHAPES = (
    MlpShape(16, 4096, 512),
    MlpShape(4, 8192, 512),
    MlpShape(4, 64, 64),
    MlpShape(4, 2048, 1024),
)
"""The MLPs of the targets."""
