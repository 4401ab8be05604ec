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
from primepar.schedule import Linear, Program, Sequence

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A registered name, file.py:Class, program.json, or a sequence like K,P2x2.",
        show_default=False,
    ),
]
PlanTargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A registered name, file.py:Class, program.json, a sequence like K,P2x2, plan.json, "
        "or a ready plan beside --model.",
        show_default=False,
    ),
]
SideOption = Annotated[
    str | None,
    typer.Option(
        "--side",
        metavar="S",
        help="Length of the mesh's side; one length for each side where there are several: 2,3.",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="CONFIG.JSON",
        help="Make TARGET, a ready plan like megatron or M2,summa, for this model.",
        show_default=False,
    ),
]
RanksOption = Annotated[
    int | None, typer.Option("--ranks", help="Devices of the ready plan.", show_default=False)
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch",
        min=1,
        help="Sequences of a step: of the ready plan, or of a plan that leaves them open.",
        show_default=False,
    ),
]
DepthOption = Annotated[
    int | None, typer.Option("--depth", help="Depth of a tesseract plan.", show_default=False)
]
PositionsOption = Annotated[
    int | None,
    typer.Option(
        "--positions",
        min=1,
        help="Tokens of each sequence of a plan's step; all that the model takes if not given.",
        show_default=False,
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        "--shape",
        metavar="M,N,K",
        help="Elements of the operator's dims, or B,M,N,K; two for each slice if not given.",
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
