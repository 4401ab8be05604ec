"""`primepar check`: emulated devices against one device; of a plan, a whole training step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from primepar.api.asked_target import AskedTarget
from primepar.api.placement import COMMAND_LINE
from primepar.api.questions import check_target
from primepar.commands.options import (
    BatchOption,
    DevicesOption,
    JsonOption,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    ShapeOption,
    SideOption,
    json_text,
    likely_cause,
)
from primepar.commands.plan_targets import Making
from primepar.schedule import Primitive

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
    json: JsonOption = False,
) -> None:
    """Compare emulated devices with one device: integers, and ==.

    Phases with signatures of their own are computed by exact surrogates. A training step of a plan
    is also run on real numbers: loss and gradients are compared with the dense transformer's,
    within 1e-10. Ends with 1 if a tensor differs, if the schedule is refused, or if a device sends
    more or less than the formula of the method.
    """
    resolved = Making(model, devices, batch, positions).resolved(target, step=True)
    asked = AskedTarget(target, resolved, COMMAND_LINE)
    report = check_target(asked, side, shape, seed, batch, positions)
    if isinstance(resolved, Primitive) and not report.equal:
        _end(report, json, likely_cause(resolved))
    _end(report, json)


def _end(report: CheckReport, json: bool, cause: Iterable[str] = ()) -> NoReturn:
    lines = "\n".join([*report.lines(_paint), *cause])
    typer.echo(json_text(report) if json else lines, nl=not json)
    raise typer.Exit(0 if report.equal else 1)


def _paint(text: str, good: bool) -> str:
    return typer.style(text, fg="green" if good else "red")
