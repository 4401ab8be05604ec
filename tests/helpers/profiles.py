"""Which tests run: HYPOTHESIS_PROFILE=ci (`make test-long`) has all, everything else is short."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")
IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "ci"
long = pytest.mark.skipif(not IS_LONG, reason="runs with `make test-long`")
"""A test of which the short profile has a cheaper one that sees most of the same faults."""


def draws(count: int) -> int:
    """How many cases a generator gives: all with `make test-long`, else two fifths of them."""
    return count if IS_LONG else count * 2 // 5


def thinned(cases: Iterable[Case], every: int) -> list[Case]:
    """Each `every`-th of these cases, beginning with the second; all with `make test-long`."""
    chosen = list(cases)
    return chosen if IS_LONG else chosen[1::every]


few = pytest.mark.few
"""Of its cases the short profile runs two: the first and the last."""
