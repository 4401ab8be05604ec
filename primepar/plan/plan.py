"""A plan: one sequence for every operator of a model, on one mesh."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, Struct

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators
from primepar.partition.by_dimension import Replicated
from primepar.plan.checks import check_recomputed, check_sequences, operator_named
from primepar.plan.operator_layouts import sequence_of
from primepar.plan.pipeline_layout import PipelineLayout, micro_batches
from primepar.plan.row_cuts import RowCuts, row_cuts
from primepar.schedule.sequence import Element, Sequence

Recomputation = Literal["selective", "full"] | tuple[str, ...]
"""Which activations are computed again, from what is kept of a layer; or names of operators."""


def recomputed_words(recompute: str | tuple[str, ...] | None) -> str:
    """What is computed again, in words: `full`, or `norm1, act`."""
    return ", ".join(recompute) if isinstance(recompute, tuple) else recompute or "none"


MOST_RANKS = 4096
"""Largest mesh that is planned device by device."""


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A sequence for every operator of `model` on `ranks` devices.

    `batch` is the number of sequences of a training step, each of the model's context; None leaves
    it open. With a `pipeline` every sequence is for the devices of one stage. A `sharded_optimizer`
    keeps its states in shards over the devices that have the same block (ZeRO-1). With `recompute`
    activations are computed again in backward: all of a layer, what is cheap, or what some of its
    operators make, by name. Raises `PlanError` where the sequences, the pipeline, the names or the
    batch do not fit the model or the mesh.
    """

    format: Literal["primepar-plan"] = "primepar-plan"
    version: Literal[1] = 1
    model: ModelConfig
    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    batch: Annotated[int, Meta(ge=1)] | None = None
    pipeline: PipelineLayout | None = None
    sharded_optimizer: bool = False
    recompute: Recomputation | None = None
    sequences: dict[str, str]

    def __post_init__(self) -> None:
        if self.pipeline is not None:
            try:
                self.pipeline.stage_ranks(self.ranks)
                self.pipeline.check(self.model.layers)
            except PlanError as error:
                raise PlanError(f"$.pipeline: {error}") from None
        stages = 1 if self.pipeline is None else self.pipeline.stages
        check_sequences(self.model, self.stage_ranks, self.sequences, stages)
        if isinstance(self.recompute, tuple):
            check_recomputed(self.model, self.recompute)
        if self.batch is not None:
            refusal = self.row_cuts.refusal(self.batch, self.model.context)
            if refusal is not None:
                raise PlanError(f"$.batch: {refusal}")

    @property
    def stage_ranks(self) -> int:
        """Devices of one stage: all devices where the plan has no pipeline."""
        return self.ranks if self.pipeline is None else self.ranks // self.pipeline.stages

    @property
    def schedule(self) -> PipelineLayout | None:
        """The pipeline, or one micro-batch on one stage where activations are computed again."""
        if self.pipeline is None and self.recompute is not None:
            return micro_batches(1)
        return self.pipeline

    @property
    def micro_batches(self) -> int:
        """Parts that a step's batch is cut into over time."""
        return 1 if self.pipeline is None else self.pipeline.micro_batches

    @property
    def mesh(self) -> Sequence:
        """A sequence over all devices: with a pipeline, the head's on every stage."""
        sequence = self.sequence("head")
        if self.stage_ranks == self.ranks:
            return sequence
        stages = Element(Replicated(), (self.ranks // self.stage_ranks,))
        return Sequence((stages, *sequence.elements))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Operators of the model in the order of execution."""
        return operators(self.model)

    @cached_property
    def _by_name(self) -> dict[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    def operator(self, name: str) -> Operator:
        """The operator of that name. Raises `PlanError` where the model has none."""
        return self._by_name[name] if name in self._by_name else operator_named(self.model, name)

    def sequence(self, name: str) -> Sequence:
        """The sequence of an operator. Raises `PlanError` where the model has no such operator."""
        return sequence_of(self.operator(name), self.sequences[name])

    @cached_property
    def row_cuts(self) -> RowCuts:
        """How the operators cut the rows, and so which batches fit."""
        return row_cuts(self.operators, self.sequences, self.micro_batches)

    def check_batch(self, batch: int, positions: int) -> None:
        """Raise `PlanError` unless `batch` is the planned one and its rows can be cut.

        A step has `batch` sequences of `positions` tokens each.
        """
        if self.batch not in (None, batch):
            raise PlanError(
                f"batch: expected {self.batch}, as the plan states, got {batch}: "
                "take that, or a plan for this one"
            )
        refusal = self.row_cuts.refusal(batch, positions)
        if refusal is not None:
            raise PlanError(f"batch: {refusal}")

    def check_ranks(self, ranks: int) -> None:
        """Raise `PlanError` unless the plan is for a mesh of this many devices."""
        if ranks != self.ranks:
            raise PlanError(
                f"plan: expected {self.ranks} devices, as it was made for, got {ranks}: "
                f"start {self.ranks} processes, or make a plan for {ranks}"
            )

    def check_runs(self) -> None:
        """Raise `PlanError` for a model with parts that no training step here has."""
        what = self.model.priced and self.model.priced.what
        if what:
            raise PlanError(
                f"plan: expected a model that a training step here has, got one with {what}, which "
                "is priced, not run: take a model without"
            )

    def check_model(self, model: ModelConfig) -> None:
        """Raise `PlanError` unless the plan is for a model of the same parts and sizes."""
        self.check_runs()
        for field in fields(ModelConfig):
            planned, got = getattr(self.model, field.name), getattr(model, field.name)
            if planned != got:
                raise PlanError(
                    f"plan: expected a model with {field.name}={planned}, as it was made for, "
                    f"got {field.name}={got}: take that model, or make a plan for this one"
                )
