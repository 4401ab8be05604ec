"""A refuted or undecided property as a finding: one message, and places in the user's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from primepar.schedule.counterexample import Counterexample
from primepar.verify.report import PropertyResult, Report

Level = Literal["error", "warning"]


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
        if event.source:
            file, _, line = event.source.rpartition(":")
            role = f" ({event.role})" if event.role else ""
            yield SourceLine(file, int(line), f"rank {event.rank}: {event.text}{role}")
