"""What a cluster says of kinds of operators, spread over what a step's program does for them.

The cost model counts an operator as a few large passes, the program makes more and smaller ones. On
one device both count the same operators, and so a kind takes the same time there by both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators
from primepar.operators.step import lower_step
from primepar.plan.cluster import BYTES, Cluster, Passing
from primepar.plan.plan import Plan
from primepar.plan.profile.counts import Counts, counts
from primepar.plan.simulator.work import Work
from primepar.schedule.program import Compute, Program


def phases_passing(
    plan: Plan, program: Program, sizes: tuple[int, int], cluster: Cluster, dtype: str
) -> dict[str, Passing]:
    """Phase of a step -> its start and its bytes per second, for kinds that the cluster has.

    `sizes` are the sequences of the step and the tokens of each.
    """
    batch, positions = sizes
    model = replace(plan.model, layers=1, context=positions)
    counted, made = _counted(model, batch, dtype), _made(model, batch, cluster, dtype)
    own = {
        kind: Passing(each.launch * counted[kind].starts / made[kind].starts,
                      each.memory_bandwidth * made[kind].bytes / counted[kind].bytes)
        for kind, each in cluster.operators.items()
    }  # fmt: skip
    kinds = {phase: kind_of(phase, plan.operators) for phase in program.phases or {}}
    return {phase: own[kind] for phase, kind in kinds.items() if kind in own}


def kind_of(phase: str, known: Iterable[Operator]) -> str:
    """Kind of the operator that a phase of a step is of, or `update`, the norm before it too."""
    if phase.endswith(".update") or phase.startswith("gradient."):
        return "update"
    return max((len(each.name), each.kind) for each in known if phase.startswith(f"{each.name}."))[
        1
    ]


def _counted(model: ModelConfig, batch: int, dtype: str) -> dict[str, Counts]:
    """What the cost model counts of all operators of each kind on one device."""
    shapes = model.parameter_shapes
    found = {"update": Counts(len(shapes), 0, model.parameters * BYTES[dtype])}
    for operator in operators(model):
        if operator.kind != "linear":
            own, sum_ = counts(model, operator, batch, dtype), found.get(operator.kind, Counts())
            found[operator.kind] = Counts(sum_.starts + own.starts, 0, sum_.bytes + own.bytes)
    return found


def _made(model: ModelConfig, batch: int, cluster: Cluster, dtype: str) -> dict[str, Counts]:
    """What the program of a step does for all operators of each kind on one device."""
    known = operators(model)
    plan = Plan(model=model, ranks=1, sequences={each.name: "" for each in known})
    program, found = lower_step(plan, batch, model.context), dict[str, Counts]()
    work = Work(program, cluster, dtype, {}, float)
    for node in program.programs[0]:
        if isinstance(node, Compute) and node.phase is not None:
            kind = kind_of(node.phase, known)
            sum_ = found.get(kind, Counts())
            found[kind] = Counts(sum_.starts + 1, 0, sum_.bytes + work.touched(node))
    return found
