"""What `primepar verify` writes of a refutation: its picture, and the smallest program like it."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.api.target import Target
from primepar.commands.options import file_option
from primepar.errors import TargetError
from primepar.files import write_text
from primepar.pictures.counterexample import CounterexamplePanel, counterexample_svg
from primepar.schedule import Primitive, Program, Sequence, lower, save_program
from primepar.schedule.sequence import Nesting

if TYPE_CHECKING:
    from primepar.verify.counterexample.minimal import Minimal
    from primepar.verify.report import PropertyResult, Report

CounterexampleOption = Annotated[
    Path | None,
    file_option("Write a picture of the counterexamples (.svg).", "--output", "-o"),
]
MinimalOption = Annotated[
    Path | None,
    file_option(
        "Write the smallest program that is refuted in the same way.",
        "--minimal",
        metavar="OUT.JSON",
    ),
]


def write_picture(report: Report, output: Path) -> None:
    """Draw all counterexamples of a report into one file; without any there is no file."""
    panels = [
        CounterexamplePanel(result.name, result.counterexample, result.details)
        for result in report.properties
        if result.details is not None and result.counterexample is not None
    ]
    if not panels:
        typer.echo(f"nothing is refuted: {output} is not written", err=True)
        return
    write_text(output, counterexample_svg(f"{report.target}: refuted", panels))
    typer.echo(f"wrote {output}", err=True)


def write_smallest(
    report: Report, placed: Target | Nesting, output: Path, buffered: bool, seconds: float
) -> None:
    """Write the smallest program in which the first refuted property of a report is refuted too.

    A primitive or a sequence is lowered to the smallest mesh that is wrong. Raises `TargetError`
    where that has too many devices, or where the program that it lowers to is right in this.
    """
    from primepar.verify.counterexample.minimal import minimal
    from primepar.verify.counterexample.primitive import MOST_DEVICES

    wrong = next((result for result in report.properties if result.details is not None), None)
    if wrong is None:
        typer.echo(f"nothing is refuted: {output} is not written", err=True)
        return
    devices = prod(((wrong.details and wrong.details.mesh) or {}).values())
    if devices > MOST_DEVICES:
        raise TargetError(
            f"--minimal: expected at most {MOST_DEVICES} devices, got {devices}, as no smaller "
            "mesh is wrong: leave --minimal out"
        )
    smallest = minimal(_program(placed, wrong), wrong.name, buffered, seconds)
    if smallest is None:
        raise TargetError(
            f"--minimal: expected a program whose {wrong.name} is refuted, got the one that "
            f"{report.target} lowers to, in which it is not: leave --minimal out"
        )
    save_program(smallest.program, output)
    typer.echo("\n".join(_about(wrong.name, smallest, output)), err=True)


def _program(placed: Target | Nesting, wrong: PropertyResult) -> Program:
    sides = tuple((wrong.details.sides or {}).values()) if wrong.details else ()
    if isinstance(placed, Primitive):
        placed = Sequence.of(placed, *sides)
    if isinstance(placed, Nesting):
        placed = placed.of(sides)
    assert isinstance(placed, Program | Sequence)
    return placed if isinstance(placed, Program) else lower(placed)


def _about(name: str, smallest: Minimal, output: Path) -> list[str]:
    ranks = smallest.program.ranks
    count = sum(map(len, smallest.program.programs))
    more = "nothing more can be left out" if smallest.is_smallest else "the time was up"
    size = f"{ranks} rank{'s' * (ranks != 1)}, {count} instruction{'s' * (count != 1)}"
    return [
        f"wrote {output}: {name} is refuted with {size}; {more}",
        f"  {smallest.sentence.splitlines()[0]}",
        f"  replay: primepar check {output}",
    ]
