"""A plan: one sequence for every operator of a model, on one mesh.

Its file is versioned JSON, read strictly and replaced atomically.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from primepar.errors import ConfigError, PlanError, PrimeParError
from primepar.files import write_text
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators
from primepar.partition.by_dimension import Replicated
from primepar.partition.pipeline.actions import ScheduleName
from primepar.plan.checks import (
    RowCuts,
    check_recomputed,
    check_sequences,
    operator_named,
    row_cuts,
)
from primepar.plan.operator_layouts import sequence_of
from primepar.plan.pipeline_layout import PipelineLayout, micro_batches
from primepar.reading import read_bytes, read_json
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


class _Headed(Struct):
    format: str = ""
    sequences: msgspec.Raw = msgspec.Raw()


class _File(Struct):
    """The head of a plan file: format, version, and the keys of its model."""

    format: Literal["primepar-plan"]
    version: Literal[1]
    model: dict[str, msgspec.Raw] = {}


def is_plan(path: Path) -> bool:
    """Whether a file declares the format of plans, or declares no format and has `sequences`.

    False for a file that cannot be read.
    """
    try:
        header = msgspec.json.decode(read_bytes(path), type=_Headed)
    except (OSError, RecursionError, UnicodeDecodeError, msgspec.DecodeError):
        return False
    return header.format == "primepar-plan" or (not header.format and bool(bytes(header.sequences)))


def load_plan(path: Path) -> Plan:
    """Read a plan file. Raises `PlanError` naming the JSON path and the fix."""
    head = read_json(path, _File, "a plan file", PlanError, _advice)
    _check_model_keys(path, head.model)
    return read_json(path, Plan, "a plan file", PlanError, _advice)


def _check_model_keys(path: Path, model: Mapping[str, object]) -> None:
    known = [field.name for field in fields(ModelConfig)]
    for key in model:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            write = f"write {near[0]}" if near else "leave it out"
            raise PlanError(
                f"{path}: $.model: expected one of {', '.join(known)}, got {key!r}: {write}"
            )


def _advice(error: Exception, _: bytes) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, PrimeParError):
        return f"$.model: {message}" if isinstance(error, ConfigError) else message
    for field, value in (("format", '"primepar-plan"'), ("version", "1")):
        if message.startswith("Invalid enum value") and message.endswith(f"`$.{field}`"):
            return f"{message}: write {value}"
        if message == f"Object missing required field `{field}`":
            return f'{message}: write "{field}": {value}'
    if message.endswith("`$.pipeline.schedule`"):
        return f"{message}: write one of {', '.join(get_args(ScheduleName))}"
    if message.endswith("`$.recompute`"):
        names = 'names of operators of a layer, as ["norm1"]'
        return f'{message}: write "full", "selective", or {names}'
    return message


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan file, replacing an old one atomically. Raises `PlanError` if it cannot."""
    write_text(path, plan_json(plan), PlanError)


def plan_json(plan: Plan) -> str:
    """JSON text of a plan, keys in fixed order, one operator per line for readable diffs."""
    document = msgspec.to_builtins(plan)
    for name in ("pipeline", "sharded_optimizer", "recompute"):
        if not document[name]:
            del document[name]
    if document["model"]["priced"] is None:
        del document["model"]["priced"]
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def schema() -> dict[str, object]:
    """JSON Schema of the plan format, shipped as `plan.schema.json` in this folder."""
    document: dict[str, Any] = msgspec.json.schema(Plan)
    plan, model = document["$defs"]["Plan"], document["$defs"]["ModelConfig"]
    plan["required"] = ["format", "version", *plan["required"]]
    model["additionalProperties"] = False
    return document
