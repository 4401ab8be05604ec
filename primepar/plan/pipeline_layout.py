"""How a plan lays out its model over the stages of a pipeline, and its batch over time.

A model is cut into chunks of consecutive layers, a stage has one or more of them, and a step passes
its micro-batches through the chunks in the order of a published schedule. Micro-batch k of n has
the k-th part of the step's sequences. Stages are outermost: rank = stage x ranks per stage + local.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Annotated, cast, get_args

from msgspec import Meta, Struct

from primepar.errors import MethodError, PlanError, nearest
from primepar.models.graph import Operator
from primepar.partition.pipeline.actions import ScheduleName, chunks_of, stage_of
from primepar.partition.pipeline.dependencies import PipelineOrders

MOST_PASSES = 100_000
"""Stages times micro-batches times chunks; a number beyond is a mistake."""


class PipelineLayout(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, dict=True
):
    """Stages, micro-batches and schedule; `chunks` of the model per stage, the fewest by default.

    Raises `PlanError` for sizes that the schedule is not defined for.
    """

    schedule: ScheduleName
    stages: Annotated[int, Meta(ge=1)]
    micro_batches: Annotated[int, Meta(ge=1)]
    chunks: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        passes = self.stages * self.micro_batches * (self.chunks or 1)
        if passes > MOST_PASSES:
            raise PlanError(
                f"expected at most {MOST_PASSES:,} passes of a micro-batch through a stage, got "
                f"{passes:,}: take fewer micro-batches"
            )
        try:
            assert self.pipeline_orders
        except MethodError as error:
            raise PlanError(str(error)) from None

    @cached_property
    def pipeline_orders(self) -> PipelineOrders:
        """The actions of every stage, in order, and what they wait for.

        The gradient of a chunk's input leaves after B, before the sums of a last micro-batch.
        """
        orders = PipelineOrders.of(self.schedule, self.stages, self.micro_batches, self.chunks)
        return replace(orders, sends_early=True)

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
            for order in self.pipeline_orders.orders
            for before, after in pairwise(order)
            if after.kind == "W"
        )

    def stage_ranks(self, ranks: int) -> int:
        """Devices of one stage. Raises `PlanError` unless the stages divide the devices."""
        if ranks % self.stages:
            more = -(-ranks // self.stages) * self.stages
            raise PlanError(
                f"expected a multiple of the {self.stages} stages as number of devices, got "
                f"{ranks}: take {more} devices, or other stages"
            )
        return ranks // self.stages

    def check(self, layers: int) -> None:
        """Raise `PlanError` unless every chunk has a layer."""
        chunks = len(self.stage_chunks)
        if chunks > layers:
            per_stage = chunks // self.stages
            what = f"{self.stages} stages" + f" of {per_stage} chunks" * (per_stage > 1)
            raise PlanError(
                f"expected at least {chunks} layers for {what}, got a model of {layers} "
                f"layer{'s' * (layers != 1)}: take fewer stages"
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


def layers_by_stage(layers: int, stages: int) -> list[int]:
    """Layers of every stage, as even as possible.

    Additional layers go to the inner stages first, from the back, since the first and the last
    stage also have the embedding and the head. Example: 70 layers on 4 stages are 17, 18, 18, 17.
    """
    even, rest = divmod(layers, stages)
    inner = [stage for stage in range(stages) if 0 < stage < stages - 1][::-1]
    longer = set([*inner, 0, stages - 1][:rest])
    return [even + (stage in longer) for stage in range(stages)]


def micro_batches(count: int) -> PipelineLayout:
    """A step of `count` micro-batches one after another: gradient accumulation.

    It is a pipeline of one stage. There 1F1B does the backward of each right after its forward.
    """
    return PipelineLayout(schedule="1f1b", stages=1, micro_batches=count)


_PREFIX = re.compile(r"([^,:]*)(:[^,]*)?(?:,(.*))?")
_SIZES = re.compile(r":([1-9]\d{0,8})x([1-9]\d{0,8})(?:x([1-9]\d{0,8}))?")


def take_pipeline(name: str) -> tuple[PipelineLayout | None, str]:
    """The pipeline that a preset's name begins with, and the rest: `1f1b:2x4,M2,megatron`.

    After the schedule come stages, micro-batches, and chunks of a stage where not the fewest. None
    for a name without a pipeline. Raises `PlanError` for an unknown schedule, or sizes that are
    missing or do not fit.
    """
    match, schedules = _PREFIX.fullmatch(name), get_args(ScheduleName)
    if match is None or (None in match.groups()[1:] and match[1] not in schedules):
        return None, name
    schedule, text, rest = match.groups()
    if schedule not in schedules:
        raise PlanError(
            f"{name}: expected a schedule out of {', '.join(schedules)} before :, got "
            f"{schedule!r}{nearest(schedule, schedules)}"
        )
    if not rest:
        raise PlanError(
            f"{name}: expected a preset for the stages of the pipeline, got none: write "
            f"{schedule}:2x4,megatron for 2 stages and 4 micro-batches"
        )
    sizes = _SIZES.fullmatch(text or "")
    if sizes is None:
        raise PlanError(
            f"{name}: expected stages and micro-batches of the pipeline, got "
            f"{text[1:] if text else 'none'}: write {schedule}:2x4,{rest} for 2 stages and 4 "
            "micro-batches"
        )
    numbers = [int(size) for size in sizes.groups() if size is not None]
    try:
        pipeline = PipelineLayout(
            schedule=cast(ScheduleName, schedule),
            stages=numbers[0],
            micro_batches=numbers[1],
            chunks=numbers[2] if len(numbers) > 2 else None,
        )
    except PlanError as error:
        raise PlanError(f"{name}: {error}") from None
    return pipeline, rest


def layer_of(name: str) -> int | None:
    """The layer of an operator; None for one outside of the layers."""
    first, *rest = name.split(".")
    return int(rest[0]) if first == "blocks" else None


def layer_operator(name: str) -> str:
    """The name in its layer of an operator: `qkv` of `blocks.3.qkv`."""
    return name.split(".", 2)[2]


def by_layer(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield the operators of every layer, in order; those outside of layers are left out."""
    for layer, operators in groupby(names, layer_of):
        if layer is not None:
            yield list(operators)
