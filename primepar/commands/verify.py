"""`primepar verify`: a primitive for every side, one program, or the training step of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.commands.certificates import (
    CertificateOption,
    check_name,
    lowered,
    write_certificate,
)
from primepar.commands.counterexamples import (
    CounterexampleOption,
    MinimalOption,
    check_names,
    write_picture,
    write_smallest,
)
from primepar.commands.options import (
    BatchOption,
    DepthOption,
    JsonOption,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    RanksOption,
    SideOption,
    json_text,
)
from primepar.commands.plan import Making, TrainingStep, refuse_for_plan
from primepar.errors import ConfigError, TargetError
from primepar.partition.registry import labelled
from primepar.plan import Plan
from primepar.schedule import Primitive, Program
from primepar.schedule.nesting import Nesting

if TYPE_CHECKING:
    from primepar.verify.report import Report

EXIT_CODES = {"proved": 0, "refuted": 1, "unknown": 3}
LONGEST = 1_000_000
"""Seconds; Z3 counts milliseconds in 32 bits."""
_COLOURS = {"proved": "green", "refuted": "red", "unknown": "yellow", "not asked": "yellow"}


def verify(
    target: PlanTargetArgument,
    side: SideOption = None,
    all_sides: Annotated[
        bool,
        typer.Option(
            "--all-sides", help="Prove a primitive, or K,P, for every side (the default)."
        ),
    ] = False,
    buffered: Annotated[
        bool, typer.Option("--buffered", help="Let every send return at once: a weaker question.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds in all; what is not told by then is unknown.",
        ),
    ] = 60.0,
    model: ModelOption = None,
    ranks: RanksOption = None,
    batch: BatchOption = None,
    depth: DepthOption = None,
    positions: PositionsOption = None,
    output: CounterexampleOption = None,
    smallest: MinimalOption = None,
    certificate: CertificateOption = None,
    json: JsonOption = False,
) -> None:
    """Prove a primitive for every side of the mesh, or a sequence or program as it stands.

    A sequence without lengths, like K,P, is proved for every length of every member.
    Of a plan a whole training step is proved: forward, backward, sums of gradients and updates.
    Ends with 0 if all is proved, 1 if something is refuted, 3 if something is unknown.
    """
    if not 0.001 <= timeout <= LONGEST:
        raise ConfigError(f"--timeout: expected seconds from 0.001 to {LONGEST}, got {timeout:g}")
    check_names(output, smallest)
    check_name(certificate)
    making = Making(model, ranks, batch, depth, positions)
    placed = making.nesting(target) or making.resolved(target, step=True)
    step = None
    if isinstance(placed, Nesting):
        report = _every_length(target, placed, side, buffered, timeout)
        scope, replay = f"for {report.scope}", _replay_of(target, placed, report)
    elif isinstance(placed, Plan):
        refuse_for_plan(target, {"--side": side, "--all-sides": all_sides})
        step = making.step(placed)
        placed = step.program
        report = _program(placed, target, buffered, timeout)
        scope, replay = f"for {step}", making.replay(target)
    elif isinstance(placed, Primitive) and side is None:
        report = _every_side(target, placed, buffered, timeout)
        scope, replay = f"for {report.scope}", _replay(target, _smallest_sides(placed, report))
    elif all_sides:
        raise TargetError(
            "--all-sides: expected a primitive or a sequence without lengths like K,P, and no "
            f"--side, got {_named(target, side)}"
        )
    else:
        placed = lowered(target, placed, side)
        report = _program(placed, target, buffered, timeout)
        scope = f"for side {side}" if side else "as it stands"
        replay = _replay(target, side)
    if json:
        typer.echo(json_text(_as_json(report, step)), nl=False)
    else:
        typer.echo("\n".join(_lines(report, scope, replay)))
    if output is not None:
        write_picture(report, output)
    if smallest is not None:
        write_smallest(report, placed, smallest, buffered, 2 * timeout)
    if certificate is not None:
        write_certificate(report, placed, certificate, side, buffered, timeout)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _named(target: str, side: str | None) -> str:
    return f"{target} with --side {side}: leave one out" if side else f"{target}: leave it out"


def _every_side(target: str, primitive: Primitive, buffered: bool, timeout: float) -> Report:
    from primepar.verify.primitive.proof import verify_primitive

    _refuse_buffers(target, buffered)
    return verify_primitive(primitive, target, timeout)


def _every_length(
    target: str, nesting: Nesting, side: str | None, buffered: bool, timeout: float
) -> Report:
    from primepar.verify.nesting.proof import verify_nesting

    _refuse_buffers(target, buffered)
    if side is not None:
        raise TargetError(
            f"{target}: expected no --side, as a sequence has a length for each member, got --side "
            f"{side}: leave it out to prove every length, or write lengths like "
            f"{nesting.of((2,) * len(nesting.side_names))}"
        )
    return verify_nesting(nesting, target, timeout)


def _refuse_buffers(target: str, buffered: bool) -> None:
    if buffered:
        raise TargetError(
            f"--buffered: expected a program, a sequence with its lengths or one --side, got "
            f"{target} for every side: what a map moves is posted at once and needs no buffer"
        )


def _program(program: Program, target: str, buffered: bool, timeout: float) -> Report:
    from primepar.verify.program.proof import verify_program

    return verify_program(program, target, buffered, timeout)


def _as_json(report: Report, step: TrainingStep | None) -> dict[str, object]:
    """The report; a property has a `reason` only where there is one.

    Of a proof for all sides it has `certified`: whether the checker accepted its certificate.

    Only a primitive has a `scope`, and only a plan a `step`.
    """
    properties = [
        {
            "name": result.name,
            "verdict": result.verdict,
            "seconds": round(result.seconds, 6),
            "counterexample": result.counterexample,
            **({} if result.certified is None else {"certified": result.certified}),
            **({"reason": result.reason} if result.reason else {}),
            **({"details": result.details} if result.details else {}),
        }
        for result in report.properties
    ]
    scope = {"scope": report.scope} if report.scope else {}
    sizes = {"step": {"batch": step.batch, "positions": step.positions}} if step else {}
    return {
        "target": report.target,
        **scope,
        **sizes,
        "verdict": report.verdict,
        "properties": properties,
    }


def _lines(report: Report, scope: str, replay: str) -> Iterator[str]:
    yield from report.lines(scope, seconds=True, paint=_paint)
    if report.verdict == "refuted":
        yield f"  replay: {replay}"


def _paint(text: str, verdict: str) -> str:
    return typer.style(text, fg=_COLOURS[verdict])


def styled(verdict: str, width: int = 0) -> str:
    """A verdict in its colour."""
    return _paint(f"{verdict:{width}}", verdict)


def _replay(target: str, side: str | None) -> str:
    """The command that meets the counterexample on emulated devices."""
    return f"primepar check {target}" + (f" --side {side}" if side else "")


def _replay_of(target: str, nesting: Nesting, report: Report) -> str:
    """The command for the smallest mesh of a sequence, by its name if it can be spelt."""
    found = next((each.details for each in report.properties if each.details), None)
    sides = tuple((found.sides or {}).values()) if found else ()
    if not all(labelled(name) for name in nesting.names) or not sides:
        return f"primepar verify {target} --minimal wrong.json && primepar check wrong.json"
    return f"primepar check {nesting.of(sides)}"


def _smallest_sides(primitive: Primitive, report: Report) -> str:
    """The sides that the first counterexample starts with, `s=2 (2x2 devices): ...`."""
    refuted = (each.counterexample for each in report.properties if each.counterexample)
    mesh = next(refuted, "").partition("(")[0]
    return ",".join(re.findall(r"=(\d+)", mesh)[: len(primitive.side_names)])
