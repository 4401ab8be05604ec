"""A plan: one sequence for every operator of a model, on one mesh; versioned JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from primepar.errors import ConfigError, PlanError
from primepar.files import read_bytes, write_text
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators
from primepar.partition.registry import parse_sequence
from primepar.plan.row_cuts import RowCuts, row_cuts
from primepar.schedule.sequence import Sequence

MOST_RANKS = 4096
"""Largest mesh that is planned device by device."""


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A sequence for every operator of `model` on `ranks` devices.

    `batch` is the number of sequences of a training step, each of the model's context; None leaves
    it open. Raises `PlanError` for what does not fit the model, the mesh or one another.
    """

    format: Literal["primepar-plan"] = "primepar-plan"
    version: Literal[1] = 1
    model: ModelConfig
    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    batch: Annotated[int, Meta(ge=1)] | None = None
    sequences: dict[str, str]

    def __post_init__(self) -> None:
        from primepar.plan.checks import check_plan

        check_plan(self)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Operators of the model in the order of execution."""
        return operators(self.model)

    @cached_property
    def _by_name(self) -> dict[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    def operator(self, name: str) -> Operator:
        """The operator of that name. Raises `PlanError` where the model has none."""
        if name not in self._by_name:
            near = get_close_matches(name, self._by_name, n=1)
            write = f"write {near[0]}" if near else f"write one like {self.operators[1].name}"
            layers = f"{self.model.layers} layer{'s' * (self.model.layers != 1)}"
            raise PlanError(
                f"expected an operator of this model of {layers}, got {name!r}: {write}"
            )
        return self._by_name[name]

    def sequence(self, name: str) -> Sequence:
        """The sequence of an operator. Raises `PlanError` where the model has no such operator."""
        linear = self.operator(name).kind == "linear"
        return _parse(self.sequences[name], linear)

    @cached_property
    def row_cuts(self) -> RowCuts:
        """How the operators cut the rows, and so which batches fit."""
        return row_cuts(self)

    def check_batch(self, batch: int, positions: int) -> None:
        """Raise `PlanError` unless it is the planned batch and its rows can be cut.

        A step has `batch` sequences of `positions` tokens each.
        """
        if self.batch not in (None, batch):
            raise PlanError(
                f"batch: expected {self.batch}, as the plan says, got {batch}: "
                "take that, or a plan for this one"
            )
        refusal = self.row_cuts.refusal(batch, positions)
        if refusal is not None:
            raise PlanError(f"batch: {refusal}")

    def check_ranks(self, ranks: int) -> None:
        """Raise `PlanError` unless the plan is for a mesh of so many devices."""
        if ranks != self.ranks:
            raise PlanError(
                f"plan: expected {self.ranks} devices, as it was made for, got {ranks}: "
                f"start {self.ranks} processes, or make a plan for {ranks}"
            )

    def check_model(self, model: ModelConfig) -> None:
        """Raise `PlanError` unless the plan is for a model of the same parts and sizes."""
        for field in fields(ModelConfig):
            planned, got = getattr(self.model, field.name), getattr(model, field.name)
            if planned != got:
                raise PlanError(
                    f"plan: expected a model with {field.name}={planned}, as it was made for, "
                    f"got {field.name}={got}: take that model, or make a plan for this one"
                )


@lru_cache(maxsize=1024)
def _parse(text: str, linear: bool) -> Sequence:
    return parse_sequence(text, linear=linear)


class _Headed(Struct):
    format: str = ""
    sequences: msgspec.Raw = msgspec.Raw()


class _File(Struct):
    """What a plan file must say of itself, and the keys of its model."""

    format: Literal["primepar-plan"]
    version: Literal[1]
    model: dict[str, msgspec.Raw] = {}


def is_plan(path: Path) -> bool:
    """Whether a file says that it is a plan, or says not what it is but has the sequences of one.

    One that cannot be read says nothing.
    """
    try:
        found = msgspec.json.decode(read_bytes(path), type=_Headed)
    except (OSError, RecursionError, UnicodeDecodeError, msgspec.DecodeError):
        return False
    return found.format == "primepar-plan" or (not found.format and bool(bytes(found.sequences)))


def load_plan(path: Path) -> Plan:
    """Read a plan file. Raises `PlanError` naming the JSON path and the mend."""
    try:
        content = read_bytes(path)
        _check_model_keys(msgspec.json.decode(content, type=_File).model)
        return msgspec.json.decode(content, type=Plan)
    except OSError as error:
        raise PlanError(f"{path}: expected a plan file, got {error.strerror}") from None
    except RecursionError:
        raise PlanError(f"{path}: expected a plan, got JSON nested too deeply") from None
    except (PlanError, ConfigError) as error:
        place = "$.model: " if isinstance(error, ConfigError) else ""
        raise PlanError(f"{path}: {place}{error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: {_mend(str(error))}") from None


def _check_model_keys(model: Mapping[str, object]) -> None:
    known = [field.name for field in fields(ModelConfig)]
    for key in model:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            write = f"write {near[0]}" if near else "leave it out"
            raise PlanError(f"$.model: expected one of {', '.join(known)}, got {key!r}: {write}")


def _mend(message: str) -> str:
    message = " ".join(message.split())
    if "truncated" in message or "malformed" in message or "utf-8" in message:
        return f"expected JSON, got broken text: {message}"
    for field, value in (("format", '"primepar-plan"'), ("version", "1")):
        if message.startswith("Invalid enum value") and message.endswith(f"`$.{field}`"):
            return f"{message}: write {value}"
        if message == f"Object missing required field `{field}`":
            return f'{message}: write "{field}": {value}'
    return message


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan file, replacing an old one in one go. Raises `PlanError` if it cannot."""
    write_text(path, plan_json(plan), PlanError)


def plan_json(plan: Plan) -> str:
    """JSON text of a plan, keys in fixed order, one operator per line so that diffs read."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"


def schema() -> dict[str, object]:
    """JSON Schema of the plan format; shipped as `plan.schema.json` beside this file."""
    found: dict[str, Any] = msgspec.json.schema(Plan)
    plan, model = found["$defs"]["Plan"], found["$defs"]["ModelConfig"]
    plan["required"] = ["format", "version", *plan["required"]]
    model["additionalProperties"] = False
    return found
