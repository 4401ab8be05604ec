"""A verdict as workflow commands of GitHub Actions, which it shows at the lines of a change.

For example `::error file=ring.py,line=12,title=deadlock-freedom::ranks 0 and 1 wait ...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from primepar.preflight.report.findings import Finding, SourceLine

_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}


def workflow_commands(listed: list[Finding]) -> Iterator[str]:
    """Yield one command for each finding, and a notice for each further line that takes part."""
    for finding in listed:
        title = f"title={_escaped(finding.property, _PROPERTY)}"
        first = [*map(_place, finding.lines[:1]), title]
        yield f"::{finding.level} {','.join(first)}::{_escaped(finding.message, _MESSAGE)}"
        texts: dict[str, list[str]] = {}
        for line in finding.lines[1:]:
            texts.setdefault(_place(line), []).append(line.text)
        for place, several in texts.items():
            yield f"::notice {place},{title}::{_escaped('; '.join(several), _MESSAGE)}"


def _place(line: SourceLine) -> str:
    return f"file={_escaped(line.file, _PROPERTY)},line={line.line}"


def _escaped(text: str, letters: Mapping[str, str]) -> str:
    return "".join(letters.get(letter, letter) for letter in text)
