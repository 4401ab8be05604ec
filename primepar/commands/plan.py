"""`primepar show` of a plan: a plan file, or a ready plan made for a model and a mesh."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer

from primepar.commands.options import json_text
from primepar.errors import TargetError
from primepar.files import write_text
from primepar.plan import Plan, ready_plan, save_plan
from primepar.plan.describe import describe, words
from primepar.plan.picture import plan_svg


def make_plan(
    target: str, model: Path | None, ranks: int | None, batch: int | None, depth: int | None
) -> Plan:
    """The ready plan that the options ask for. Raises `TargetError`, `PlanError`, `ConfigError`."""
    given = {"--ranks": ranks, "--batch": batch, "--depth": depth}
    if model is None:
        option = next(name for name, value in given.items() if value is not None)
        raise TargetError(
            f"{option}: expected --model config.json beside it, which makes a ready plan, got "
            "none: name the model"
        )
    if ranks is None:
        raise TargetError(
            f"{target}: expected the number of devices of the plan, got none: write --ranks 4"
        )
    from primepar.models.config_json import load_config

    return ready_plan(target, load_config(model), ranks, batch, depth)


def show_plan(plan: Plan, output: Path | None, json: bool) -> None:
    """Tell a plan in words and pictures, or write it or its picture into a file."""
    if output is None:
        told = describe(plan)
        columns = shutil.get_terminal_size((100, 24)).columns
        typer.echo(json_text(told) if json else words(told, columns), nl=False)
        return
    if output.suffix == ".json":
        save_plan(plan, output)
    elif output.suffix == ".svg":
        write_text(output, plan_svg(describe(plan)))
    else:
        raise TargetError(
            f"--output: expected a name that ends with .json (the plan) or .svg (the picture), "
            f"got {output}"
        )
    typer.echo(f"wrote {output}")


def refuse_for_plan(target: str, options: dict[str, object]) -> None:
    """Raise `TargetError` if an option is given that says nothing of a plan."""
    for option, value in options.items():
        if value:
            given = option if value is True else f"{option} {value}"
            raise TargetError(
                f"{target}: expected no {option}, as a plan has its own sequences, got {given}: "
                "leave it out"
            )
