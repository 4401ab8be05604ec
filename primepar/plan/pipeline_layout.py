"""How a plan lays out its model over the stages of a pipeline, and its batch over time.

A model is cut into chunks of consecutive layers, a stage has one or more of them, and a step passes
its micro-batches through the chunks in the order of a published schedule. Micro-batch k of n has
the k-th part of the step's sequences. Stages are outermost: rank = stage x ranks per stage + local.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated

from msgspec import Meta, Struct

from primepar.errors import MethodError, PlanError
from primepar.models.graph import Operator
from primepar.partition.pipeline.actions import Order, ScheduleName, actions, chunks_of, stage_of
from primepar.plan.pipeline.schedule import layers_by_stage

MOST_MICRO_BATCHES = 4096
"""Of a step; a number beyond is a mistake."""


class PipelineLayout(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, dict=True
):
    """Stages, micro-batches and schedule; `chunks` of the model per stage, the fewest by default.

    Raises `PlanError` for sizes that the schedule is not defined for.
    """

    schedule: ScheduleName
    stages: Annotated[int, Meta(ge=1)]
    micro_batches: Annotated[int, Meta(ge=1, le=MOST_MICRO_BATCHES)]
    chunks: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        try:
            assert self.orders
        except MethodError as error:
            raise PlanError(str(error)) from None

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """The actions of every stage, in order."""
        return actions(self.schedule, self.stages, self.micro_batches, self.chunks)

    @cached_property
    def stage_chunks(self) -> tuple[tuple[int, int], ...]:
        """For each chunk of the model its stage, and its number among the chunks of that stage."""
        count = self.stages * chunks_of(self.schedule, self.chunks)
        return tuple(
            stage_of(self.schedule, self.stages, self.chunks, chunk) for chunk in range(count)
        )

    @property
    def splits_backward(self) -> bool:
        """Whether some weight gradient comes later than directly after the input gradient."""
        return any(
            before != after._replace(kind="B")
            for order in self.orders
            for before, after in pairwise(order)
            if after.kind == "W"
        )

    def check(self, ranks: int, layers: int) -> None:
        """Raise `PlanError` unless the stages divide the ranks, and every chunk has a layer."""
        if ranks % self.stages:
            raise PlanError(
                f"expected stages that divide the {ranks} devices of $.ranks, got {self.stages}: "
                f"write {ranks if self.stages > ranks else self.stages * (ranks // self.stages)} "
                f"in {'$.pipeline.stages' if self.stages > ranks else '$.ranks'}"
            )
        chunks = len(self.stage_chunks)
        if chunks > layers:
            what = "stages" if chunks == self.stages else f"chunks ({self.stages} stages)"
            raise PlanError(
                f"expected at most one of {what} per layer, got {chunks} for a model of {layers} "
                f"layer{'s' * (layers != 1)}: take fewer stages, or a model of {chunks} layers"
            )

    def chunk_operators(
        self, operators: tuple[Operator, ...], layers: int
    ) -> tuple[tuple[Operator, ...], ...]:
        """The operators of every chunk of the model, in the order of execution.

        The embedding is in the first chunk; the last norm, the head and the loss are in the last.
        """
        counts = layers_by_stage(layers, len(self.stage_chunks))
        ends = list(accumulate(counts))
        chunks: list[list[Operator]] = [[] for _ in counts]
        number = 0
        for operator in operators:
            layer = layer_of(operator.name)
            if layer is not None:
                number = next(chunk for chunk, end in enumerate(ends) if layer < end)
            chunks[number].append(operator)
        return tuple(map(tuple, chunks))


def layer_of(name: str) -> int | None:
    """The layer of an operator; None for one outside of the layers."""
    first, *rest = name.split(".")
    return int(rest[0]) if first == "blocks" else None
