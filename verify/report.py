"""The result of a proof: a verdict per property, with the counterexample or the reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
from primepar.schedule.counterexample import Counterexample

Verdict = Literal["proved", "refuted", "unknown", "not asked"]
"""A property is not asked if it has no meaning until another one holds; a report always is."""

PROPERTIES = (
    "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races", "memory",
    "traffic",
)  # fmt: skip
"""Names of the properties, in the order in which a report lists them."""


class PropertyResult(Struct, frozen=True):
    """The result of one property."""

    name: str
    verdict: Verdict
    seconds: float
    counterexample: str | None = None
    """If refuted: one sentence with the place and the fix, then lines of detail if any."""
    reason: str | None = None
    """If unknown, why; if proved, a note: what the proof relies on, or the amounts it found."""
    details: Counterexample | None = None
    """If refuted: the counterexample as data, for pictures and programs."""
    certified: bool | None = None
    """Of a proof for all sides: whether the checker accepted a certificate of it."""


class Report(Struct, frozen=True):
    """The results of all properties of one target."""

    target: str
    verdict: Verdict
    properties: tuple[PropertyResult, ...]
    scope: str | None = None
    """If a primitive: the sides of the verdict, `every s >= 1 (axes r, c)`."""
    certificate: PrimitiveCertificate | SequenceCertificate | None = None
    """If a proof for all sides: its certificate, if every claim is certified."""

    @classmethod
    def of(
        cls,
        target: str,
        properties: Iterable[PropertyResult],
        scope: str | None = None,
        certificate: PrimitiveCertificate | SequenceCertificate | None = None,
    ) -> Report:
        """Combine the results: refuted if any property is, else unknown if any is, else proved."""
        results = tuple(properties)
        verdicts = {result.verdict for result in results}
        overall: Verdict = "proved"
        if "refuted" in verdicts:
            overall = "refuted"
        elif "unknown" in verdicts:
            overall = "unknown"
        return cls(target, overall, results, scope, certificate)

    def __getitem__(self, name: str) -> PropertyResult:
        """Return the result of a property. Raises `KeyError` if it was not asked."""
        for result in self.properties:
            if result.name == name:
                return result
        raise KeyError(name)
