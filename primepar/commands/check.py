"""`primepar check`: emulated devices against one device; of a plan, a whole training step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

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
    no_shape,
    on_mesh,
    operator_of,
)
from primepar.commands.plan_targets import Making, refuse_for_plan
from primepar.plan import Plan
from primepar.schedule import Primitive, Program

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
    making = Making(model, devices, batch, positions)
    resolved = making.resolved(target, step=True)
    if isinstance(resolved, Plan):
        refuse_for_plan(target, {"--side": side, "--shape": shape})
        step = making.step(resolved)
        from primepar.reference.check import check_plan

        _end(check_plan(resolved, step.batch, step.positions, target, seed), json)
    placed = on_mesh(target, resolved, side)
    operator = None if shape is None else operator_of(shape)
    from primepar.reference.check import check as check_sequence
    from primepar.reference.check import check_program

    if not isinstance(placed, Program):
        report = check_sequence(placed, operator, seed)
    elif operator is None:
        report = check_program(placed, target, seed)
    else:
        raise no_shape(target, shape)
    if isinstance(resolved, Primitive) and not report.equal:
        _end(report, json, likely_cause(resolved))
    _end(report, json)


def _end(report: CheckReport, json: bool, cause: Iterable[str] = ()) -> NoReturn:
    lines = "\n".join([*report.lines(_paint), *cause])
    typer.echo(json_text(report) if json else lines, nl=not json)
    raise typer.Exit(0 if report.equal else 1)


def _paint(text: str, good: bool) -> str:
    return typer.style(text, fg="green" if good else "red")
