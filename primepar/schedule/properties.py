"""Names of the properties of a schedule, and which of them have no meaning without another.

A property is *not asked* where it would be reported of data that may be others than are meant. The
prover and the explorer both read this rule here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Verdict = Literal["proved", "equal", "refuted", "unknown", "not asked"]
"""How a property of a report ends. A whole report is never *equal* or *not asked*.

*Equal* is no proof: a formula of memory or traffic was compared with what is counted, mesh by mesh.
"""

HOLDS: Final = frozenset({"proved", "equal"})
"""Verdicts on a property that leave its report proved."""
PROPERTIES: Final = (
    "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races", "memory",
    "traffic",
)  # fmt: skip
"""Names of the properties, in the order in which a report lists them."""

_CONTENTS: Final = ("deadlock-freedom", "races")
"""Without these, what a block holds depends on when a message arrives, or on whether it does."""
BASES: Final[Mapping[str, tuple[str, ...]]] = {
    "placement": _CONTENTS,
    "alignment": _CONTENTS,
    "completion": (*_CONTENTS, "coverage", "placement", "alignment"),
}
"""Property -> those without which it has no meaning.

A sum is complete if it has every term once. Its terms are the right ones if every sub-operator is
computed, and reads the right blocks in each phase.
"""


def missing_base(name: str, verdicts: Mapping[str, Verdict]) -> str | None:
    """The property for whose sake another one is not asked; None if it is asked.

    `verdicts` has the verdict on each property of a report alone. A counterexample is always
    reported. A property that is unknown stays so, unless one that it needs is refuted.
    """
    verdict = verdicts[name]
    if verdict == "refuted":
        return None
    enough = {"proved", "unknown"} if verdict == "unknown" else {"proved"}
    bases = [base for base in BASES.get(name, ()) if base in verdicts]
    return next((base for base in bases if verdicts[base] not in enough), None)
