"""`primepar verify`: a primitive for every side, one program, or the training step of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from primepar.api.questions import verify_target
from primepar.api.target import COMMAND_LINE, AskedTarget, EveryTarget, TrainingStep
from primepar.commands.certificates import (
    CertificateOption,
    check_certificate,
    write_certificate,
)
from primepar.commands.counterexamples import (
    CounterexampleOption,
    MinimalOption,
    write_picture,
    write_smallest,
)
from primepar.commands.options import (
    BatchOption,
    DevicesOption,
    JsonOption,
    Making,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    SideOption,
    json_text,
)
from primepar.errors import ConfigError, TargetError, one_line
from primepar.files import announce, check_ending
from primepar.partition.registry import labelled
from primepar.plan import Plan
from primepar.schedule import Primitive
from primepar.schedule.deadline import TIMEOUT
from primepar.schedule.sequence import Nesting

if TYPE_CHECKING:
    from primepar.verify.report import Report

EXIT_CODES = {"proved": 0, "refuted": 1, "unknown": 3}
LONGEST = 1_000_000
"""Seconds; Z3 counts milliseconds in 32 bits."""
_COLOURS = {"proved": "green", "equal": "cyan", "refuted": "red", "unknown": "yellow",
            "not asked": "yellow"}  # fmt: skip


def verify(
    target: PlanTargetArgument,
    side: SideOption = None,
    buffered: Annotated[
        bool, typer.Option("--buffered", help="Let every send return at once, a weaker question.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds in all. A property that is not decided by then is unknown.",
        ),
    ] = TIMEOUT,
    solver: Annotated[
        str | None,
        typer.Option(
            metavar="z3",
            help="Search for the order of a program, and for what is not covered, by Z3.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    devices: DevicesOption = None,
    batch: BatchOption = None,
    positions: PositionsOption = None,
    output: CounterexampleOption = None,
    smallest: MinimalOption = None,
    certificate: CertificateOption = None,
    json: JsonOption = False,
) -> None:
    """Prove a primitive on every mesh, or a sequence or a program as given.

    A sequence without lengths, like K,P, is proved for every length of every member. Of a plan a
    whole training step is proved: forward, backward, sums of gradients and updates. A certificate
    that is there is checked without Z3 and without the prover, and nothing else is done. Ends with
    0 if all is proved, 1 if something is refuted, 3 if something is unknown or a certificate does
    not hold.
    """
    if not 0.001 <= timeout <= LONGEST:
        raise ConfigError(f"--timeout: expected seconds from 0.001 to {LONGEST}, got {timeout:g}")
    check_ending("--output", output, svg="the picture")
    check_ending("--minimal", smallest, json="the program")
    check_ending("--certificate", certificate, json="the certificate")
    if solver not in (None, "z3"):
        raise TargetError(
            f"--solver: expected z3, got {solver!r}: leave it out for the linear search"
        )
    if certificate is not None and not certificate.exists():
        announce(certificate)
    making = Making(model, devices, batch, positions)
    resolved = making.every_length(target) or making.resolved(target, step=True)
    if isinstance(resolved, type) and (smallest or certificate):
        option = "--minimal" if smallest else "--certificate"
        raise TargetError(
            f"{target}: expected sizes, as {option} is of one program, got none: "
            f"write {resolved().text}"
        )
    if certificate is not None and certificate.exists():
        others = {"--side": side, "--buffered": buffered, "--solver": solver,
                  "--output": output, "--minimal": smallest}  # fmt: skip
        _end_checked(certificate, others, target, resolved, making, json)
    asked = AskedTarget(target, resolved, COMMAND_LINE)
    step = making.step(resolved) if isinstance(resolved, Plan) else None
    report, placed = verify_target(
        asked, side, buffered, timeout, batch, positions, "z3" if solver else "search"
    )
    scope, replay = _scope(report, step, side), _replay(making, target, resolved, report, side)
    if json:
        typer.echo(json_text(report_json(report, step)), nl=False)
    else:
        typer.echo("\n".join(_lines(report, scope, replay)))
    if output is not None:
        write_picture(report, output)
    if isinstance(placed, type):
        raise typer.Exit(EXIT_CODES[report.verdict])
    if smallest is not None:
        write_smallest(report, placed, smallest, buffered, 2 * timeout)
    if certificate is not None:
        write_certificate(report, placed, certificate, side, buffered, timeout)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _end_checked(
    file: Path, others: Mapping[str, object], target: str, resolved: EveryTarget,
    making: Making, json: bool,
) -> NoReturn:  # fmt: skip
    """End with what a certificate that is there states, if it holds."""
    if given := [option for option, value in others.items() if value]:
        raise TargetError(
            f"{given[0]}: expected none with --certificate {file}, which is there and is checked "
            "as it is, got one: leave it out, or name a file that is not there"
        )
    assert not isinstance(resolved, type)
    seen = check_certificate(file, target, resolved, making)
    if json:
        typer.echo(json_text(seen), nl=False)
    elif seen.holds:
        typer.echo(f"{file}: holds: {target} is {seen.verdict} {seen.scope}")
        typer.echo(f"  {', '.join(seen.properties)}")
    else:
        typer.echo(f"{file}: does not hold: {one_line(seen.reason or '')}")
    raise typer.Exit(EXIT_CODES[seen.verdict if seen.holds else "unknown"])


def _scope(report: Report, step: TrainingStep | None, side: str | None) -> str:
    """What a proof is about."""
    if step is not None or report.scope:
        return f"for {step or report.scope}"
    return f"for side {side}" if side else "as given"


def _replay(
    making: Making, target: str, resolved: EveryTarget, report: Report, side: str | None
) -> str:
    """The command that meets the counterexample on emulated devices."""
    if isinstance(resolved, Nesting):
        return _replay_of(target, resolved, report)
    if isinstance(resolved, Plan):
        return making.replay(target)
    if isinstance(resolved, Primitive) and side is None:
        side = ",".join(map(str, report.smallest_sides))
    return f"primepar check {target}" + (f" --side {side}" if side else "")


def report_json(report: Report, step: TrainingStep | None = None) -> dict[str, object]:
    """The report as `--json` prints it; a property has a `reason` only where there is one.

    Of a proof for all sides it has `certified`: whether the checker accepted its certificate. One
    that is equal has `meshes`: the number of meshes on which it is.

    Only a primitive has a `scope`, and only a plan a `step`.
    """
    properties = [
        {
            "name": result.name,
            "verdict": result.verdict,
            "seconds": round(result.seconds, 6),
            "counterexample": result.counterexample,
            **({} if result.certified is None else {"certified": result.certified}),
            **({} if result.meshes is None else {"meshes": result.meshes}),
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
    yield from report.lines(scope, seconds=True, paint=paint)
    if report.verdict == "refuted":
        yield f"  replay: {replay}"


def paint(text: str, verdict: str) -> str:
    """A text in the colour of a verdict."""
    return typer.style(text, fg=_COLOURS[verdict])


def _replay_of(target: str, nesting: Nesting, report: Report) -> str:
    """The command for the smallest mesh of a sequence, by its name if it can be spelt."""
    sides = report.smallest_sides
    if not all(labelled(name) for name in nesting.names) or not sides:
        return f"primepar verify {target} --minimal wrong.json && primepar check wrong.json"
    return f"primepar check {nesting.of(sides)}"
