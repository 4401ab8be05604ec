"""`primepar check`: emulated devices against one device; of a plan, a whole training step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from primepar.api.questions import check_target
from primepar.api.target import COMMAND_LINE, OF_A_METHOD, AskedTarget
from primepar.commands.options import (
    BatchOption,
    DevicesOption,
    JsonOption,
    Making,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    ShapeOption,
    SideOption,
    json_text,
    likely_cause,
)
from primepar.errors import TargetError
from primepar.partition.stream_k import StreamK

if TYPE_CHECKING:
    from primepar.reference.check import CheckReport


def check(
    target: PlanTargetArgument,
    side: SideOption = None,
    shape: ShapeOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random integers.")] = 0,
    model: ModelOption = None,
    devices: DevicesOption = None,
    batch: BatchOption = None,
    positions: PositionsOption = None,
    triton: Annotated[
        bool, typer.Option("--triton", help="Of stream-k: run its Triton kernel instead.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compare emulated devices with one device: integers, and ==.

    Phases with signatures of their own are computed by exact surrogates. A training step of a plan
    is also run on real numbers: loss and gradients are compared with the dense transformer's,
    within 1e-10. With --triton the kernel of stream-k runs on one device: interpreted on the CPU,
    compiled where there is CUDA. Ends with 1 if a tensor differs, if the schedule is refused, or if
    a device sends more or less than the formula of the method.
    """
    resolved = Making(model, devices, batch, positions).resolved(target, step=True)
    asked = AskedTarget(target, resolved, COMMAND_LINE)
    if triton:
        asked.refuse(OF_A_METHOD, side=side, shape=shape, batch=batch, positions=positions)
        _end_kernel(target, resolved, seed, json)
    report = check_target(asked, side, shape, seed, batch, positions)
    _end(report, json, () if report.equal else likely_cause(resolved, side))


def _end_kernel(target: str, resolved: object, seed: int, json: bool) -> NoReturn:
    """Compare a method's Triton kernel with a dense product."""
    if not isinstance(resolved, StreamK):
        raise TargetError(
            f"--triton: expected stream-k, whose kernel is in Triton, got {target}: leave it out"
        )
    from primepar.distributed.kernels.stream_k import check_kernel

    report = check_kernel(resolved, target, seed)
    typer.echo(json_text(report) if json else str(report), nl=not json)
    raise typer.Exit(0 if report.equal else 1)


def _end(report: CheckReport, json: bool, cause: Iterable[str] = ()) -> NoReturn:
    title, *lines = report.lines(_paint)
    typer.echo(json_text(report) if json else "\n".join([title, *cause, *lines]), nl=not json)
    raise typer.Exit(0 if report.equal else 1)


def _paint(text: str, good: bool) -> str:
    return typer.style(text, fg="green" if good else "red")
