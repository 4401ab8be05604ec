"""What the commands share: their common options, the meshes of targets, and writing files."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Annotated

import typer

from primepar.commands.resolve_target import Target
from primepar.errors import ShapeError, TargetError
from primepar.plan.plan import Plan
from primepar.schedule import Linear, Primitive, Program, Sequence

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

MOST_DEVICES = 4096
"""Largest mesh that is unrolled device by device."""


def on_mesh(name: str, target: Target, side: str | None) -> Sequence | Program:
    """Put a primitive on the mesh of `--side`; let a sequence or a program be.

    Raises `TargetError` if the side is missing, is no length, or has nothing to be said of.
    """
    if isinstance(target, Plan):
        raise TargetError(
            f"{name}: expected a primitive, a sequence or a program, got a plan: only "
            "`primepar show`, `primepar check`, `primepar verify`, `primepar simulate` and "
            "`primepar train --plan` take one"
        )
    if isinstance(target, Primitive):
        placed: Sequence | Program = Sequence.of(target, *_lengths(name, target, side))
    elif side is not None:
        own = "sequence" if isinstance(target, Sequence) else "program"
        raise TargetError(
            f"{name}: expected no --side, as a {own} has its own mesh, got --side {side}: "
            "leave it out"
        )
    else:
        placed = target
    if isinstance(placed, Sequence) and prod(placed.axis_lengths) > MOST_DEVICES:
        raise TargetError(
            f"{name}: expected at most {MOST_DEVICES} devices to unroll, got "
            f"{prod(placed.axis_lengths)}: take a smaller mesh"
        )
    return placed


def _lengths(name: str, primitive: Primitive, side: str | None) -> tuple[int, ...]:
    names = primitive.side_names
    if not names:
        expected, example = f"no length, as {name} has no side", "leave --side out"
    else:
        several = len(names) > 1
        expected = (
            f"the length{'s' * several} of side{'s' * several} {', '.join(names)}, "
            f"{'each ' * several}1 or more"
        )
        example = f"write --side {','.join(str(2 + place) for place in range(len(names)))}"
    if side is None and names:
        raise TargetError(f"{name}: expected {expected}, got none: {example}")
    parts = [] if side is None else [part.strip() for part in side.split(",")]
    if len(parts) != len(names) or not all(map(_is_length, parts)):
        raise TargetError(f"--side: expected {expected}, got {side!r}: {example}")
    return tuple(map(int, parts))


def _is_length(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0


def operator_of(shape: str) -> Linear:
    """The operator of `--shape`. Raises `ShapeError`."""
    parts = [part.strip() for part in shape.split(",")]
    if len(parts) not in (3, 4) or not all(p.isascii() and p.isdigit() for p in parts):
        raise ShapeError(
            f"--shape: expected M,N,K or B,M,N,K, got {shape!r}: write it like --shape 8,8,8"
        )
    *batch, M, N, K = map(int, parts)
    return Linear(M, N, K, *batch)


def no_shape(target: str, shape: str | None) -> TargetError:
    """The error for a shape beside a program."""
    return TargetError(
        f"{target}: expected no --shape, as a program names its own, got --shape {shape}: "
        'write it into the file, "shape": {"M": 4, "N": 4, "K": 4}'
    )


def json_text(value: object) -> str:
    """JSON for people and programs, with a newline at its end."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
