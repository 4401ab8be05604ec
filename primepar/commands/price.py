"""`primepar price`: what a plan costs on a cluster, next to the best one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from primepar.api.resolve_target import resolve
from primepar.commands.options import JsonOption, PlanTargetArgument
from primepar.commands.plan_options import ClusterOption, DtypeOption, SpaceOption, print_result
from primepar.commands.progress import progress
from primepar.errors import TargetError
from primepar.models.sizes import find_model
from primepar.plan import Plan, names_preset, preset_plan


def price(
    target: PlanTargetArgument,
    cluster: ClusterOption,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Model of a preset: config.json or a name.", show_default=False
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Devices of a preset.", show_default=False)
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences of a training step.", show_default="the plan's, or 8"),
    ] = None,
    dtype: DtypeOption = None,
    space: SpaceOption = "paper",
    json: JsonOption = False,
) -> None:
    """Price a plan: a file, or a preset of a model, next to the best plan of a space.

    Each operator has what it takes more than in that. The cost model is that of `plan`.
    """
    plan = _plan(target, model, devices)
    from primepar.plan.cluster import load_cluster
    from primepar.plan.search.explanation_text import words
    from primepar.plan.search.price import price_of

    machine = load_cluster(cluster)
    with progress() as tick:
        tick(f"the best plan of space {space}")
        explanation = price_of(plan, machine, batch or plan.batch or 8, dtype, space)
    print_result(explanation, words(explanation), None, json)


def _plan(target: str, model: str | None, devices: int | None) -> Plan:
    """The plan that a target names. Raises `TargetError`, and what reading it raises."""
    if names_preset(target) and not Path(target).is_file():
        if model is None or devices is None:
            missing = "--model config.json" if model is None else "--devices 8"
            raise TargetError(
                f"{target}: expected the model and the devices of a preset, got none: write "
                f"{missing}"
            )
        return preset_plan(target, find_model(model), devices)
    for option, value in {"--model": model, "--devices": devices}.items():
        if value is not None:
            raise TargetError(
                f"{target}: expected no {option}, which makes a plan of a preset, got {option} "
                f"{value}: leave it out"
            )
    resolved = resolve(target)
    if not isinstance(resolved, Plan):
        raise TargetError(
            f"{target}: expected a plan, got a {type(resolved).__name__}: write plan.json, or a "
            "preset as megatron"
        )
    return resolved
