"""A verdict as SARIF 2.1.0 (OASIS, 2020), the format that code scanners and editors read."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import PurePath
from typing import Any, Final

import msgspec

from primepar.preflight.report.findings import Finding, SourceLine

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
