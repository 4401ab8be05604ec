"""Programs of files that other tools wrote: schedules, records of runs, algorithms.

The ending of a file decides what it is: `.csv` is a pipeline schedule of torch, `.xml` an algorithm
of MSCCL. A folder has dumps of torch's flight recorder.
"""

from __future__ import annotations

from pathlib import Path

from primepar.errors import FormatError
from primepar.schedule.program import Program

ENDINGS = (".csv", ".xml")
"""Endings of the files that are read."""
XML_SLOTS = 1
"""Slots of a channel that every MSCCL connection has (see `msccl`); with none each ring hangs."""


def read_program(path: Path) -> Program:
    """Return the program of what another tool wrote. Raises `FormatError` if it is none.

    An algorithm whose thread blocks race raises `ThreadRaceError`.
    """
    if path.is_dir():
        from primepar.preflight.importers.flight_recorder import flight_recorder_program

        return flight_recorder_program(path)
    if path.suffix == ".csv":
        from primepar.preflight.importers.pipelining import csv_program

        return csv_program(path)
    if path.suffix == ".xml":
        from primepar.preflight.importers.msccl import msccl_program

        return msccl_program(path)
    endings = ", ".join(ENDINGS)
    raise FormatError(f"{path}: expected a folder of dumps, or a file that ends in {endings}")
