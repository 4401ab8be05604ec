"""The verdict of what was captured: that of its program, unless the script did more than that."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from primepar.preflight.decisions import ScriptRecorder, decisions
from primepar.preflight.endings import endings
from primepar.preflight.meaning.captured_properties import captured_properties
from primepar.preflight.recording import RankRecording, all_gaps
from primepar.schedule.program import Program
from primepar.schedule.transport import RENDEZVOUS, Transport
from primepar.verify.program import verify_program
from primepar.verify.report import PropertyResult, Report, Verdict

MODELLED = "modelled"
"""The property that the program has all that the script did."""
_OF_PREFIXES = ("waiting-cycle", "mismatch")
"""Counterexamples that stay one, whatever comes after their instructions."""


def verdict_of(
    program: Program,
    recorded: Sequence[RankRecording],
    target: str,
    timeout: float,
    transport: Transport = RENDEZVOUS,
    recorder: ScriptRecorder | None = None,
) -> Report:
    """Prove or refute a captured program, and what its data mean.

    With a gap nothing is proved: the verdict is unknown. A refutation stays one if all of its
    instructions come before the gaps of their ranks. With a `recorder` the decisions of the script
    are taken the other way too.
    """
    report = verify_program(program, target, timeout=timeout, transport=transport)
    terms = [rank.terms for rank in recorded if rank.terms is not None]
    more = list(endings(recorded))
    if report["deadlock-freedom"].verdict == "proved" and len(terms) == program.ranks:
        more += captured_properties(program, terms)
        if recorder is not None and not any(result.verdict == "refuted" for result in more):
            decided = decisions(program, recorded, recorder, timeout, transport)
            more += [decided] if decided is not None else []
    report = Report.of(target, (*report.properties, *more))
    gaps = all_gaps(recorded)
    if not gaps:
        return report
    certain = any(_before_gaps(result, recorded) for result in report.properties)
    verdict: Verdict = "refuted" if certain else "unknown"
    unmodelled = PropertyResult(MODELLED, "unknown", 0.0, reason="\n".join(gaps))
    return replace(report, verdict=verdict, properties=(*report.properties, unmodelled))


def _before_gaps(result: PropertyResult, recorded: Sequence[RankRecording]) -> bool:
    """Whether a refutation needs only what ranks did before their first gap."""
    if result.details is None or result.details.kind not in _OF_PREFIXES:
        return False
    return all(
        event.index is not None
        and all(event.index < gap.after for gap in recorded[event.rank].gaps)
        for event in result.details.events
    )
