"""Replicas of a plan: its outermost axis of rows, split off.

Under `M2,K4` eight devices are two replicas of the plan `K4`. Each replica has the next devices and
an equal share of the sequences of a batch. With a program for each replica, instead of one for all,
the replicas need not meet in every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from primepar.errors import PlanError
from primepar.partition.by_dimension import BySequence
from primepar.plan.plan import Plan
from primepar.schedule.sequence import Sequence


@dataclass(frozen=True)
class Replicas:
    """`count` replicas of `plan`, which together run `whole`."""

    whole: Plan
    count: int
    plan: Plan

    def share(self, batch: int) -> int:
        """Return the sequences of a replica. Raises `PlanError` if the shares are not equal."""
        _check_share(self.count, batch)
        return batch // self.count


def replicas_of(plan: Plan) -> Replicas:
    """Split the outermost axis of rows off a plan.

    Raises `PlanError` unless every sequence begins with the same number of slices of the rows, if
    the plan has a pipeline, or if its batch cannot be shared equally.
    """
    if plan.pipeline is not None and plan.pipeline.stages > 1:
        raise PlanError(
            "plan: expected none with a pipeline to average replicas, as a replica has devices on "
            f"every stage, got {plan.pipeline.stages} stages: leave the period out"
        )
    sequences = {name: plan.sequence(name) for name in plan.sequences}
    counts = {name: _slices(sequence) for name, sequence in sequences.items()}
    count = max(counts.values())
    for name, slices in counts.items():
        if slices == 1 or slices != count:
            raise _refusal(str(sequences[name]), name)
    inner = {name: str(Sequence(value.elements[1:])) for name, value in sequences.items()}
    whole = Replicas(plan, count, plan)
    share = None if plan.batch is None else whole.share(plan.batch)
    alone = replace(plan, ranks=plan.ranks // count, batch=share, sequences=inner)
    return Replicas(plan, count, alone)


def _refusal(sequence: str, name: str) -> PlanError:
    return PlanError(
        "plan: expected replicas to average, all operators with the same first cut of the rows, "
        f"like M2,K2, got {sequence or 'no cut'} of {name}: begin every sequence with M2, or leave "
        "the period out"
    )


def _check_share(count: int, batch: int) -> None:
    if batch % count:
        raise PlanError(
            f"batch: expected a multiple of the {count} replicas of the plan, got {batch}: take "
            f"{-(-batch // count) * count}"
        )


def _slices(sequence: Sequence) -> int:
    """Slices of the rows that the first primitive of a sequence makes."""
    if not sequence.elements or not isinstance(sequence.elements[0].primitive, BySequence):
        return 1
    return sequence.elements[0].sides[0]
