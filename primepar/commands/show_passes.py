"""`primepar show PLAN --passes`: what every pass made of the program of a training step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from primepar.api.target import TrainingStep
from primepar.commands.amounts import aligned
from primepar.operators import lower_step
from primepar.passes import PASSES, apply
from primepar.passes.liveness import peaks
from primepar.schedule import Program
from primepar.schedule.ledger import sent_by_ranks

BEFORE = "lowered"


@dataclass(frozen=True)
class PassResult:
    """The program after a pass: instructions of all ranks by kind, elements of every rank."""

    name: str
    instructions: dict[str, int]
    sent: list[float]
    peak: list[int]

    @classmethod
    def of(cls, name: str, program: Program) -> PassResult:
        """Count what is in a program."""
        kinds = Counter(_kind(node) for nodes in program.programs for node in nodes)
        sent = [_number(count) for count in sent_by_ranks(program)]
        return cls(name, dict(sorted(kinds.items())), sent, peaks(program))


def stages(step: TrainingStep) -> list[PassResult]:
    """The step as it is lowered, and after each of the passes, one after the other."""
    program = lower_step(step.plan, step.batch, step.positions, passes=())
    results = [PassResult.of(BEFORE, program)]
    for name in PASSES:
        program = apply(program, [name])
        results.append(PassResult.of(name, program))
    return results


def passes_text(title: str, results: list[PassResult]) -> str:
    """A table with a column for every pass."""
    kinds = sorted({kind for stage in results for kind in stage.instructions})
    rows: list[tuple[str, list[float]]] = [
        (kind, [stage.instructions.get(kind, 0) for stage in results]) for kind in kinds
    ]
    rows.append(("all instructions", [sum(stage.instructions.values()) for stage in results]))
    rows.append(("sent by a rank", [max(stage.sent) for stage in results]))
    rows.append(("live on a rank", [max(stage.peak) for stage in results]))
    texts = [["", *(stage.name for stage in results)]]
    texts += [[name, *(f"{count:,}" for count in counts)] for name, counts in rows]
    heading = f"{title}: instructions of all ranks, most elements of a rank"
    return "\n".join([heading, *aligned(texts, {0}), ""])


def _kind(node: object) -> str:
    tag = str(node.__struct_config__.tag)  # type: ignore[attr-defined]
    posted = getattr(node, "request", None) is not None and hasattr(node, "group")
    return f"{tag}{', posted' * posted}{', in place' * getattr(node, 'in_place', False)}"


def _number(count: Fraction) -> float:
    return count.numerator if count.denominator == 1 else float(count)
