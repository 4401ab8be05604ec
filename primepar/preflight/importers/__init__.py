"""Programs of files that other tools wrote: schedules, and records of runs.

A file that ends in `.csv` is a pipeline schedule of torch. A folder has dumps of torch's flight
recorder.
"""

from __future__ import annotations

from pathlib import Path

from primepar.errors import FormatError
from primepar.schedule.program import Program

SCHEDULE = ".csv"
"""Ending of the files that are read."""


def read_program(path: Path) -> Program:
    """Return the program of what another tool wrote. Raises `FormatError` if it is none."""
    if path.is_dir():
        from primepar.preflight.importers.flight_recorder import flight_recorder_program

        return flight_recorder_program(path)
    if path.suffix == SCHEDULE:
        from primepar.preflight.importers.pipelining import csv_program

        return csv_program(path)
    raise FormatError(
        f"{path}: expected a folder of dumps, or a file that ends in {SCHEDULE}, got neither"
    )
