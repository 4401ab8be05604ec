"""Programs of files that other tools wrote: schedules, records of runs, algorithms.

The ending of a file decides what it is: `.csv` is a pipeline schedule of torch.
"""

from __future__ import annotations

from pathlib import Path

from primepar.errors import FormatError
from primepar.schedule.program import Program

ENDINGS = (".csv",)
"""Endings of the files that are read."""


def read_program(path: Path) -> Program:
    """Return the program of a file of another tool. Raises `FormatError` if it is none."""
    if path.suffix == ".csv":
        from primepar.preflight.importers.pipelining import csv_program

        return csv_program(path)
    raise FormatError(f"{path}: expected a file that ends in {', '.join(ENDINGS)}")
