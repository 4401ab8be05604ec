"""The verdict of what was captured: that of its program, unless the script did more than that."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from primepar.preflight.recording import RankRecording, all_gaps, program_of
from primepar.verify.program.proof import verify_program
from primepar.verify.report import PropertyResult, Report

MODELLED = "modelled"
"""The property that all that a script did is in its program."""


def verdict_of(recorded: Sequence[RankRecording], target: str, timeout: float) -> Report:
    """Prove or refute what was captured. With a gap the verdict is unknown, whatever is proved."""
    report = verify_program(program_of(recorded, target), target, timeout=timeout)
    gaps = [f"{gap.source}: rank {rank} {gap.what}" for rank, gap in all_gaps(recorded)]
    if not gaps:
        return report
    result = PropertyResult(MODELLED, "unknown", 0.0, reason="\n".join(gaps))
    return replace(report, verdict="unknown", properties=(*report.properties, result))
