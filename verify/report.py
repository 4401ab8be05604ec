"""What a proof ends with: a verdict per property, with the counterexample or the reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
from primepar.schedule.counterexample import Counterexample

Verdict = Literal["proved", "refuted", "unknown", "not asked"]
"""A property that has no meaning until another one holds is not asked; a report always is."""

PROPERTIES = (
    "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races", "memory",
    "traffic",
)  # fmt: skip
"""Names of the properties, in the order in which a report lists them."""


class PropertyResult(Struct, frozen=True):
    """How one property ended."""

    name: str
    verdict: Verdict
    seconds: float
    counterexample: str | None = None
    """If refuted: one sentence with the place and the mend, then lines of detail if any."""
    reason: str | None = None
    """If unknown, why; if proved, what the proof leans on where that is worth saying."""
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
        """Sum up: refuted if any property is, else unknown if any is, else proved."""
        results = tuple(properties)
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
