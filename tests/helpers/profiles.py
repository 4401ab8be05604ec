"""Which tests run: HYPOTHESIS_PROFILE=ci (`make test-long`) has all, everything else is short."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")
Other = TypeVar("Other")
IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "ci"
long = pytest.mark.skipif(not IS_LONG, reason="runs with `make test-long`")
"""A test of which the short profile has a cheaper one that sees most of the same faults."""


few = pytest.mark.few
"""Of its cases the short profile runs three: the first, one of the middle, the last."""


def some(cases: Sequence[Case], step: int = 3) -> list[Case]:
    """All cases in the long profile; in the short one every `step`-th, the first of them too."""
    return list(cases)[:: 1 if IS_LONG else step]


def pairs(cases: Sequence[Case], others: Sequence[Other]) -> list[tuple[Case, Other]]:
    """Every pair in the long profile; in the short one every third."""
    return [
        (case, other)
        for row, case in enumerate(cases)
        for column, other in enumerate(others)
        if IS_LONG or (row + column) % 3 == 0
    ]
