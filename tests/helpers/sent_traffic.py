"""Counts what the executors of this process send in their runs, by kind of work."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any
from unittest.mock import patch

from primepar.distributed import Executor

ELEMENTS, BYTES = (defaultdict[str, Fraction](Fraction) for _ in range(2))
_run = Executor.__call__


def _counted(execute: Executor, *given: Any, **named: Any) -> Any:
    blocks = _run(execute, *given, **named)
    for kind, elements, itemsize in execute.sent:
        if elements:
            ELEMENTS[kind] += elements
            BYTES[kind] += elements * itemsize
    return blocks


patch.object(Executor, "__call__", _counted).start()


def clear() -> None:
    """Count from zero."""
    ELEMENTS.clear()
    BYTES.clear()
