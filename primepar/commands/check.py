"""`primepar check`: emulated devices against one device; of a plan, a whole training step."""

from __future__ import annotations

from collections.abc import Iterator
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


LISTED = 12
"""Tensors that are listed one by one; of more only those that differ are."""


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

    Phases with signatures of their own are computed by exact stand-ins. A training step of a plan
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
    cause = likely_cause(resolved) if isinstance(resolved, Primitive) and not report.equal else ""
    _end(report, json, cause)


def _end(report: CheckReport, json: bool, cause: str = "") -> NoReturn:
    typer.echo(json_text(report) if json else "\n".join(_lines(report)), nl=not json)
    typer.echo("" if json else cause, nl=False)
    raise typer.Exit(0 if report.equal else 1)


def _lines(report: CheckReport) -> Iterator[str]:
    sizes = " ".join(f"{dim}={size}" for dim, size in report.shape.items())
    devices = f"{report.ranks} emulated device{'s' * (report.ranks != 1)}"
    yield f"{report.target or 'all'} on {devices}{', ' * bool(sizes)}{sizes}"
    outputs = report.outputs
    if len(outputs) > LISTED:
        outputs = {tensor: equal for tensor, equal in outputs.items() if not equal}
        yield f"  {len(report.outputs) - len(outputs)} tensors {_verdict(True, 'equal', '')}"
    width = max([4, *map(len, outputs)])
    for tensor, equal in outputs.items():
        yield f"  {tensor:{width}} {_verdict(equal, 'equal', 'differs')}"
    if report.sent:
        formula = "" if report.formula is None else f", {report.formula:g} by the formula"
        yield f"  sent per device  {_range(report.sent)} elements{formula}"
        yield f"  peak per device  {_range(report.peak)} elements"
    if report.stand_ins and report.equal:
        yield "  by stand-ins for what the phases compute: data is where it belongs, summed once"
    if report.difference is not None and report.equal:
        yield "  by kernels on real numbers: loss and gradients within 1e-10 of the dense ones"
    if report.message:
        yield f"  {_verdict(False, '', 'refused')}  {report.message}"


def _verdict(good: bool, yes: str, no: str) -> str:
    return typer.style(yes, fg="green") if good else typer.style(no, fg="red")


def _range(numbers: tuple[int | float, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
