"""Times of a cluster for kinds of operators, converted to the phases of a step's program.

The cost model counts an operator as a few large kernels; the program runs more and smaller ones. So
the times of each kind are scaled until cost model and simulator agree on one device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators
from primepar.operators.step import lower_step
from primepar.plan.cluster import BYTES, Cluster, Passing
from primepar.plan.plan import Plan
from primepar.plan.profile import Counts, counts
from primepar.plan.simulator.work import Work
from primepar.schedule.program import Compute, Program


def phases_passing(
    plan: Plan, program: Program, sizes: tuple[int, int], cluster: Cluster, dtype: str
) -> dict[str, Passing]:
    """Phase of a step -> its launch time and bytes per second, for kinds that the cluster has.

    `join` is that of cuts and joins.

    `sizes` are the number of sequences of the step and the tokens of each.
    """
    batch, positions = sizes
    model = replace(plan.model, layers=1, context=positions)
    priced = _priced_counts(model, batch, dtype)
    executed = _program_counts(model, batch, cluster, dtype)
    by_kind = {
        kind: _converted(passing, priced[kind], executed[kind])
        for kind, passing in cluster.operators.items() if kind in executed
    }  # fmt: skip
    kinds = {phase: kind_of(phase, plan.operators) for phase in program.phases or {}}
    joins = {kind: times for kind, times in cluster.operators.items() if kind == "join"}
    return joins | {phase: by_kind[kind] for phase, kind in kinds.items() if kind in by_kind}


def _converted(passing: Passing, priced: Counts, executed: Counts) -> Passing:
    """The times of a kind for the counts of a program."""
    seconds = priced.bytes / passing.memory_bandwidth + priced.scores / (passing.scores or inf)
    return Passing(passing.launch * priced.starts / executed.starts, executed.bytes / seconds)


def kind_of(phase: str, operators: Iterable[Operator]) -> str:
    """Kind of a phase's operator; `update` for AdamW and for the norm of the gradient before it."""
    if phase.endswith(".update") or phase.startswith("gradient."):
        return "update"
    return max(
        (len(operator.name), operator.kind)
        for operator in operators
        if phase.startswith(f"{operator.name}.")
    )[1]


def _priced_counts(model: ModelConfig, batch: int, dtype: str) -> dict[str, Counts]:
    """Launches and bytes that the cost model counts on one device, by kind."""
    shapes = model.parameter_shapes
    totals = {"update": Counts(len(shapes), 0, model.parameters * BYTES[dtype])}
    for operator in operators(model):
        if operator.kind != "linear":
            numbers = counts(model, operator, batch, dtype)
            total = totals.get(operator.kind, Counts())
            totals[operator.kind] = Counts(
                total.starts + numbers.starts, 0, total.bytes + numbers.bytes,
                total.scores + numbers.scores,
            )  # fmt: skip
    return totals


def _program_counts(
    model: ModelConfig, batch: int, cluster: Cluster, dtype: str
) -> dict[str, Counts]:
    """Launches and bytes of a step's program on one device, by kind."""
    known = operators(model)
    plan = Plan(model=model, ranks=1, sequences={operator.name: "" for operator in known})
    program, totals = lower_step(plan, batch, model.context), dict[str, Counts]()
    work = Work(program, cluster, dtype, {}, float)
    for node in program.programs[0]:
        if isinstance(node, Compute) and node.phase is not None:
            kind = kind_of(node.phase, known)
            total = totals.get(kind, Counts())
            totals[kind] = Counts(total.starts + 1, 0, total.bytes + work.touched(node))
    return totals
