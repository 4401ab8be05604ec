"""The result of a proof: a verdict per property, with the counterexample or the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from textwrap import fill
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
from primepar.pictures.counterexample import counterexample_lines
from primepar.schedule.evidence import Counterexample
from primepar.schedule.properties import PROPERTIES, Verdict, missing_base

__all__ = ["PROPERTIES", "PropertyResult", "Report", "Verdict"]

_SUBJECT: Final = {"completion": "a sum"}
"""Property -> what has no meaning where it is not asked."""
NOT_CERTIFIED = "proved by Z3, not certified"
COLUMNS = 100
Paint = Callable[[str, str], str]
"""Colours a text by the verdict that it states."""


def plain(text: str, verdict: str) -> str:
    """The text without a colour."""
    return text


class PropertyResult(Struct, frozen=True):
    """The result of one property."""

    name: str
    verdict: Verdict
    seconds: float
    counterexample: str | None = None
    """If refuted: one sentence with the place and the fix, then lines of detail if any."""
    reason: str | None = None
    """If unknown or not asked, why; else a note: what it relies on, or amounts found."""
    details: Counterexample | None = None
    """If refuted: the counterexample as data, for pictures and programs."""
    certified: bool | None = None
    """Of a proof for all sides: whether the checker accepted a certificate of it."""
    meshes: int | None = None
    """If equal: the number of meshes on which a formula is what was counted."""

    def lines(self, seconds: bool = False, paint: Paint = plain) -> Iterator[str]:
        """The property as text: its verdict, and the counterexample drawn or the reason."""
        verdict = paint(f"{self.verdict:8}", self.verdict)
        # None is of a program, which the judge decides. False means that Z3 has to be trusted.
        if self.certified is False:
            verdict = paint(NOT_CERTIFIED, "unknown")
        if self.verdict == "equal":
            verdict = paint(f"equal on {self.meshes} mesh{'es' * (self.meshes != 1)}", "equal")
        yield f"{self.name:17} {verdict}{f' {self.seconds:8.3f} s' if seconds else ''}".rstrip()
        text = self.counterexample or self.reason or ""
        yield from (f"    {line}" for line in text.splitlines())
        if self.details is not None:
            for line in counterexample_lines(self.details):
                yield f"      {line}".rstrip()

    def __str__(self) -> str:
        return _wrapped(self.lines())


class Report(Struct, frozen=True):
    """The results of all properties of one target."""

    target: str
    verdict: Verdict
    properties: tuple[PropertyResult, ...]
    scope: str | None = None
    """If a primitive: the sides of the verdict, `every s >= 1 (axes r, c)`."""
    certificate: PrimitiveCertificate | SequenceCertificate | None = None
    """If a proof for all sides: its certificate, if every claim is certified."""
    cause: str | None = None
    """If a primitive is refuted: the likeliest mistake in its maps, with its line."""

    @classmethod
    def of(
        cls,
        target: str,
        properties: Iterable[PropertyResult],
        scope: str | None = None,
        certificate: PrimitiveCertificate | SequenceCertificate | None = None,
    ) -> Report:
        """Combine the results: refuted if any property is, else unknown if any is, else proved.

        A property that is *equal* on some meshes changes nothing: it is not what is proved.
        A property that has no meaning without another one that does not hold becomes *not asked*.
        """
        # First of all: a sum of misplaced blocks is wrong too, and that is no second mistake.
        results = tuple(_with_meaning(tuple(properties)))
        verdicts = {result.verdict for result in results}
        overall: Verdict = "proved"
        # One counterexample decides, whatever else is not known.
        if "refuted" in verdicts:
            overall = "refuted"
        elif "unknown" in verdicts:
            overall = "unknown"
        return cls(target, overall, results, scope, certificate)

    @property
    def smallest_sides(self) -> tuple[int, ...]:
        """The sides of the mesh on which the first refuted property is; empty without a mesh."""
        details = (result.details for result in self.properties if result.details is not None)
        first = next(details, None)
        return tuple(((first and first.sides) or {}).values())

    def lines(self, scope: str = "", seconds: bool = False, paint: Paint = plain) -> Iterator[str]:
        """The report as text: the verdict, every property, and the counterexamples drawn.

        `scope` is what a proof is about; `seconds` adds the time that each property took.
        """
        reach = f" {scope}" if scope and self.verdict == "proved" else ""
        yield f"{self.target}: {paint(self.verdict, self.verdict)}{reach}"
        if self.cause:
            yield f"  likely cause: {self.cause}"
        for result in self.properties:
            yield from (f"  {line}".rstrip() for line in result.lines(seconds, paint))

    def __str__(self) -> str:
        return _wrapped(self.lines(f"for {self.scope}" if self.scope else ""))

    __repr__ = __str__

    def __getitem__(self, name: str) -> PropertyResult:
        """Return the result of a property. Raises `KeyError` if it was not asked."""
        for result in self.properties:
            if result.name == name:
                return result
        raise KeyError(name)


def _with_meaning(results: tuple[PropertyResult, ...]) -> Iterator[PropertyResult]:
    """The results, without verdicts that have no meaning (`primepar.schedule.properties`)."""
    verdicts = {result.name: result.verdict for result in results}
    for result in results:
        base = missing_base(result.name, verdicts)
        if base is None:
            yield result
            continue
        subject = _SUBJECT.get(result.name, "what a block holds")
        reason = f"{base} is {verdicts[base]}, so that {subject} has no meaning"
        yield replace(result, verdict="not asked", reason=reason, certified=None)


def _wrapped(lines: Iterable[str]) -> str:
    """Lines for a page of `COLUMNS`; what is drawn is narrower and stays as it is."""
    return "\n".join(
        fill(line, COLUMNS, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2))
        if len(line) > COLUMNS
        else line
        for line in lines
    )
