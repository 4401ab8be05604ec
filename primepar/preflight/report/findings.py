"""A refuted or undecided property as a finding: one message, and places in the user's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from primepar.schedule.counterexample import Counterexample
from primepar.verify.report import PropertyResult, Report

Level = Literal["error", "warning"]
LAST_LINE = 2**31 - 1
"""The largest number of a line that readers of SARIF take."""


class SourceLine(Struct, frozen=True):
    """One line of a file, and what a rank does there."""

    file: str
    line: int
    text: str
    """`rank 1: recv X <- 0 (hangs)`"""


class Finding(Struct, frozen=True):
    """What is wrong, and the lines that take part in it; the first is where it is reported."""

    property: str
    level: Level
    message: str
    lines: tuple[SourceLine, ...]


def findings(report: Report) -> list[Finding]:
    """One finding for each property that is refuted (an error) or unknown (a warning)."""
    return [finding for result in report.properties for finding in _of_property(result)]


def _of_property(result: PropertyResult) -> Iterator[Finding]:
    lines = tuple(_lines(result.details))
    if result.verdict == "refuted":
        yield Finding(result.name, "error", result.counterexample or "", lines)
    elif result.verdict == "unknown":
        yield Finding(result.name, "warning", f"not decided: {result.reason}", lines)


def _lines(details: Counterexample | None) -> Iterator[SourceLine]:
    """The wrong instructions first, then the others that take part."""
    events = details.events if details is not None else ()
    for event in sorted(events, key=lambda event: not event.wrong):
        place = _place(event.source or "")
        if place is not None:
            file, line, inside = place
            role = f" ({event.role})" if event.role else ""
            yield SourceLine(file, line, f"rank {event.rank}{inside}: {event.text}{role}")


def _place(source: str) -> tuple[str, int, str] | None:
    """The file, the line, and the place in it; None where a source, any text, names no line.

    `train.py:42` has no place in its line, `zbv.csv:2, field 12 (2I0)` has `, field 12 (2I0)`.
    """
    file, colon, rest = source.rpartition(":")
    while colon:
        number, comma, inside = rest.partition(",")
        if number.isascii() and number.isdigit() and 0 < int(number) <= LAST_LINE:
            return file, int(number), comma + inside
        file, colon, before = file.rpartition(":")
        rest = f"{before}:{rest}"
    return None
