"""How the exercises of the tutorials end: in one line, whatever the answer does."""

from __future__ import annotations

import sys
from traceback import extract_tb
from types import TracebackType
from typing import NoReturn

from primepar.errors import PrimeParError


def refuse(why: object) -> NoReturn:
    """End the exercise: the answer is not right yet."""
    raise SystemExit(f"not yet: {why}")


def errors_in_one_line(script: str) -> None:
    """From here on an error of the answer in `script` ends in one line instead of a traceback."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lines = [frame.lineno for frame in extract_tb(trace) if frame.filename == script]
        text = " ".join(str(error).split())
        if not isinstance(error, PrimeParError):
            text = f"line {lines[-1] if lines else 0}: {kind.__name__}: {text}"
        print(f"not yet: {text}", file=sys.stderr)

    sys.excepthook = hook
