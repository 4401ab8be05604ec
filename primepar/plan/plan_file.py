"""Plans as files: versioned JSON, read strictly and replaced atomically."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from primepar.errors import ConfigError, PlanError, PrimeParError
from primepar.files import write_text
from primepar.models.config import ModelConfig
from primepar.partition.pipeline.actions import ScheduleName
from primepar.plan.plan import Plan
from primepar.reading import read_bytes, read_json


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
