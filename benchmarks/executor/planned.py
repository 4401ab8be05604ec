"""Programs of the presets, lowered once before the ranks start, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from primepar.errors import PrimeParError
from primepar.models import ModelConfig
from primepar.operators import lower_part, lower_step
from primepar.plan import PRESETS, Plan, preset_plan
from primepar.schedule import Program
from primepar.schedule.program import Collective, Compute, ISend, Recv, Send, Wait


class ListFacts(Struct, frozen=True):
    """What the lists of a program have: counts of all ranks together, a step."""

    messages: int
    """Messages between two ranks."""
    collectives: int
    """Calls of collectives, on every member."""
    waits: int
    computes: int


@dataclass(frozen=True)
class PlannedPart:
    """A plan that fits, its program of `StepPart` or `Program` as JSON, and its facts."""

    name: str
    plan: Plan
    content: bytes
    facts: ListFacts


@dataclass(frozen=True)
class Planned:
    """The plans of a case that fit, and why others do not."""

    parts: tuple[PlannedPart, ...]
    left_out: dict[str, str]


def planned(
    model: ModelConfig, ranks: int, batch: int, operators: Iterable[str] | None, names: list[str]
) -> Planned:
    """Lower the presets whose name is in `names`, or all; a step without `operators`."""
    parts: list[PlannedPart] = []
    left_out: dict[str, str] = {}
    for name in names or PRESETS:
        try:
            parts.append(_part(name, preset_plan(name, model, ranks), batch, operators))
        except PrimeParError as error:
            left_out[name] = str(error)
    return Planned(tuple(parts), left_out)


def _part(name: str, plan: Plan, batch: int, operators: Iterable[str] | None) -> PlannedPart:
    positions = plan.model.context
    if operators is None:
        program = lower_step(plan, batch, positions, "gradients")
        return PlannedPart(name, plan, b"", facts(program))
    part = lower_part(plan, operators, batch, positions)
    return PlannedPart(name, plan, msgspec.json.encode(part), facts(part.forward, part.backward))


def facts(*programs: Program) -> ListFacts:
    """Count the instructions of all ranks."""
    counts: Counter[str] = Counter()
    lists = (nodes for program in programs for nodes in program.programs)
    for node in (node for nodes in lists for node in nodes):
        counts["messages"] += isinstance(node, Send | ISend)
        counts["collectives"] += isinstance(node, Collective)
        counts["waits"] += isinstance(node, Wait | Recv)
        counts["computes"] += isinstance(node, Compute)
    return ListFacts(**{name: counts[name] for name in ListFacts.__struct_fields__})
