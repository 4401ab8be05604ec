"""What the commands share: their common options, the meshes of targets, and writing files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from primepar.api import placement
from primepar.api.placement import COMMAND_LINE
from primepar.api.placement import MOST_DEVICES as MOST_DEVICES
from primepar.api.resolve_target import Target
from primepar.errors import TargetError
from primepar.plan.plan import Plan
from primepar.schedule import Linear, Primitive, Program, Sequence

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A name that `primepar list` prints, file.py:Class, program.json, or a sequence like "
        "K,P2x2.",
        show_default=False,
    ),
]
PlanTargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A name that `primepar list` prints, file.py:Class, program.json, a sequence like "
        "K,P2x2, plan.json, or a preset plan with --model.",
        show_default=False,
    ),
]
SideOption = Annotated[
    str | None,
    typer.Option(
        "--side",
        metavar="S",
        help="Side of the mesh. Where it has several sides, one length each: 2,3.",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="CONFIG.JSON",
        help="Make the preset plan TARGET, like megatron or M2,summa, for this model.",
        show_default=False,
    ),
]
DevicesOption = Annotated[
    int | None,
    typer.Option("--devices", help="Devices of the preset plan.", show_default=False),
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch",
        min=1,
        help="Sequences of a training step: of the preset plan, or of a plan that has no batch.",
        show_default=False,
    ),
]
PositionsOption = Annotated[
    int | None,
    typer.Option(
        "--positions",
        min=1,
        help="Tokens of each sequence of a plan's step. By default the model's context.",
        show_default=False,
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        "--shape",
        metavar="M,N,K",
        help="Elements of the operator's dims, or B,M,N,K. By default two for each slice.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def on_mesh(name: str, target: Target, side: str | None) -> Sequence | Program:
    """Put a primitive on the mesh of `--side`; return a sequence or a program as it is.

    Raises `TargetError` if the side is missing, is no length, or does not apply to the target.
    """
    if isinstance(target, Plan):
        raise TargetError(
            f"{name}: expected a primitive, a sequence or a program, got a plan: only "
            "`primepar show`, `primepar check`, `primepar verify`, `primepar simulate` and "
            "`primepar train --plan` take one"
        )
    return placement.on_mesh(name, target, side, COMMAND_LINE)


def likely_cause(primitive: Primitive) -> list[str]:
    """A line with the likeliest mistake in a map that is refuted, or no line."""
    from primepar.schedule.slice_range import unwrapped

    cause = unwrapped(primitive)
    return [f"  likely cause: {cause}"] if cause else []


def operator_of(shape: str) -> Linear:
    """The operator of `--shape`. Raises `ShapeError`."""
    return placement.operator_of(shape, COMMAND_LINE)


def no_shape(target: str, shape: str | None) -> TargetError:
    """The error for a shape given together with a program."""
    return placement.no_shape(target, shape, COMMAND_LINE)


def json_text(value: object) -> str:
    """JSON for people and programs, with a newline at its end."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
