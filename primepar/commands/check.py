"""`primepar check`: emulated devices against one device; of a plan, a whole training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from primepar.commands.options import (
    BatchOption,
    DepthOption,
    JsonOption,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    RanksOption,
    ShapeOption,
    SideOption,
    json_text,
    no_shape,
    on_mesh,
    operator_of,
)
from primepar.commands.plan import Making, refuse_for_plan
from primepar.plan import Plan
from primepar.schedule import Program

if TYPE_CHECKING:
    from primepar.reference.check import CheckReport


def check(
    target: PlanTargetArgument,
    side: SideOption = None,
    shape: ShapeOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random integers.")] = 0,
    model: ModelOption = None,
    ranks: RanksOption = None,
    batch: BatchOption = None,
    depth: DepthOption = None,
    positions: PositionsOption = None,
    json: JsonOption = False,
) -> None:
    """Compare emulated devices with one device, on integers and with ==.

    Phases with signatures of their own are computed by exact stand-ins; a training step of a plan
    also on real numbers, loss and gradients within 1e-10 of the dense transformer's. Ends with 1
    if a tensor differs, if the schedule is refused, or if other than the method's formula leaves a
    device.
    """
    making = Making(model, ranks, batch, depth, positions)
    found = making.resolved(target, step=True)
    if isinstance(found, Plan):
        refuse_for_plan(target, {"--side": side, "--shape": shape})
        step = making.step(found)
        from primepar.reference.check import check_plan

        _end(check_plan(found, step.batch, step.positions, target, seed), json)
    placed = on_mesh(target, found, side)
    operator = None if shape is None else operator_of(shape)
    from primepar.reference.check import check as check_sequence
    from primepar.reference.check import check_program

    if not isinstance(placed, Program):
        report = check_sequence(placed, operator, seed)
    elif operator is None:
        report = check_program(placed, target, seed)
    else:
        raise no_shape(target, shape)
    _end(report, json)


def _end(report: CheckReport, json: bool) -> NoReturn:
    typer.echo(json_text(report) if json else "\n".join(report.lines(_paint)), nl=not json)
    raise typer.Exit(0 if report.equal else 1)


def _paint(text: str, good: bool) -> str:
    return typer.style(text, fg="green" if good else "red")
