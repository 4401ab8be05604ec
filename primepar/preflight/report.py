"""What tools read of a verdict: findings, as SARIF and as annotations of GitHub Actions.

A refuted or undecided property is a finding: one message, and places in the user's files. Code
scanners and editors read SARIF 2.1.0 (OASIS, 2020). GitHub Actions shows workflow commands at the
lines of a change: `::error file=ring.py,line=12,title=deadlock-freedom::ranks 0 and 1 wait ...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import PurePath
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from primepar.schedule.evidence import Counterexample
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


SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
RULES: Final = {
    "coverage": "Every sub-operator is computed exactly once",
    "placement": "Every block that is read is in the memory of its rank",
    "completion": "Every sum is finished before it is used",
    "alignment": "Every block ends where it is needed",
    "deadlock-freedom": "Every rank reaches its end",
    "races": "No block is touched while it is in flight",
    "memory": "No rank holds more than its limit",
    "traffic": "Every rank sends what is expected",
}
"""Property -> what holds where it is proved."""


def sarif(listed: list[Finding], target: str) -> str:
    """Return the findings of one target as the text of a SARIF file.

    A finding without lines of files is reported at line 1 of the target.
    """
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": _driver(listed)}, "results": _results(listed, target)}],
    }
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _driver(listed: list[Finding]) -> dict[str, Any]:
    names = dict.fromkeys(finding.property for finding in listed)
    return {
        "name": "primepar preflight",
        "version": version("primepar"),
        "rules": [
            {"id": name, "shortDescription": {"text": RULES.get(name, name)}} for name in names
        ],
    }


def _results(listed: list[Finding], target: str) -> list[dict[str, Any]]:
    results = []
    for finding in listed:
        places = [_location(line) for line in finding.lines or (SourceLine(target, 1, ""),)]
        related = [{"id": number, **place} for number, place in enumerate(places[1:], 1)]
        results.append({
            "ruleId": finding.property,
            "level": finding.level,
            "message": {"text": finding.message},
            "locations": places[:1],
            **({"relatedLocations": related} if related else {}),
        })  # fmt: skip
    return results


def _location(line: SourceLine) -> dict[str, Any]:
    place = {
        "artifactLocation": {"uri": PurePath(line.file).as_posix()},
        "region": {"startLine": line.line},
    }
    message = {"message": {"text": line.text}} if line.text else {}
    return {"physicalLocation": place, **message}


_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}


def workflow_commands(listed: list[Finding]) -> Iterator[str]:
    """Yield one command for each finding, and a notice for each further line that takes part."""
    for finding in listed:
        title = f"title={_escaped(finding.property, _PROPERTY)}"
        first = [*map(_annotated, finding.lines[:1]), title]
        yield f"::{finding.level} {','.join(first)}::{_escaped(finding.message, _MESSAGE)}"
        texts: dict[str, list[str]] = {}
        for line in finding.lines[1:]:
            texts.setdefault(_annotated(line), []).append(line.text)
        for place, several in texts.items():
            yield f"::notice {place},{title}::{_escaped('; '.join(several), _MESSAGE)}"


def _annotated(line: SourceLine) -> str:
    return f"file={_escaped(line.file, _PROPERTY)},line={line.line}"


def _escaped(text: str, letters: Mapping[str, str]) -> str:
    return "".join(letters.get(letter, letter) for letter in text)
