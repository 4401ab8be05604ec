"""What a proof ends with: a verdict per property, with the counterexample or the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
from primepar.schedule.counterexample import Counterexample
from primepar.schedule.properties import PROPERTIES, Verdict, missing_base

__all__ = ["PROPERTIES", "PropertyResult", "Report", "Verdict"]

_SUBJECT: Final = {"completion": "a sum"}
"""Property -> what has no meaning where it is not asked."""


class PropertyResult(Struct, frozen=True):
    """How one property ended."""

    name: str
    verdict: Verdict
    seconds: float
    counterexample: str | None = None
    """If refuted: one sentence with the place and the mend, then lines of detail if any."""
    reason: str | None = None
    """If unknown or not asked, why; if proved, what the proof leans on, where that matters."""
    details: Counterexample | None = None
    """If refuted: the counterexample as data, for pictures and programs."""
    certified: bool | None = None
    """Of a proof for all sides: whether the checker accepted a certificate of it."""


class Report(Struct, frozen=True):
    """How all properties of one target ended."""

    target: str
    verdict: Verdict
    properties: tuple[PropertyResult, ...]
    scope: str | None = None
    """Of a primitive what the verdict is about, `every s >= 1 (axes r, c)`."""
    certificate: PrimitiveCertificate | SequenceCertificate | None = None
    """Of a proof for all sides: what it rests on, if all of it is certified."""

    @classmethod
    def of(
        cls,
        target: str,
        properties: Iterable[PropertyResult],
        scope: str | None = None,
        certificate: PrimitiveCertificate | SequenceCertificate | None = None,
    ) -> Report:
        """Sum up: refuted if any property is, else unknown if any is, else proved.

        What has no meaning without another property that does not hold becomes *not asked*.
        """
        results = tuple(_with_meaning(tuple(properties)))
        verdicts = {result.verdict for result in results}
        overall: Verdict = "proved"
        if "refuted" in verdicts:
            overall = "refuted"
        elif "unknown" in verdicts:
            overall = "unknown"
        return cls(target, overall, results, scope, certificate)

    def __getitem__(self, name: str) -> PropertyResult:
        """Give one property by name. Raises `KeyError` if it was not asked."""
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
