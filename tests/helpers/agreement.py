"""Where the proofs and the explorer differ about one program."""

from __future__ import annotations

from oracle.explore import Exploration

from primepar.verify.report import Report


def refuted(report: Report) -> set[str]:
    """Names of the properties that a proof refutes."""
    return {result.name for result in report.properties if result.verdict == "refuted"}


def disagreement(report: Report, seen: Exploration) -> str:
    """Where the two differ; nothing if they agree.

    Behind a deadlock the explorer does not look for races, and with a race the data depends on
    when a message is carried over, so there only the verdicts that are left are compared.
    """
    proved, failed = refuted(report), set(seen.failed)
    if {result.name for result in report.properties} != seen.asked:
        return "asked"
    for name in ("coverage", "deadlock-freedom"):
        if (name in proved) != (name in failed):
            return name
    if report.verdict != seen.overall:
        return "verdict"
    left_open = {"races"} if "deadlock-freedom" in proved else set()
    if "races" in proved | failed:
        left_open = {"placement", "completion", "alignment", "races"}
    for name in sorted(seen.asked - left_open):
        if report[name].verdict != seen.verdict(name):
            return name
    if "races" not in proved | failed:
        return "" if proved == failed else "properties"
    if "deadlock-freedom" not in proved and ("races" in proved) != ("races" in failed):
        return "races"
    return ""
