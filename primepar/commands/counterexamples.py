"""What `primepar verify` writes of a refutation: its picture, and the smallest program like it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.errors import TargetError
from primepar.files import write_text
from primepar.pictures.counterexample_svg import Panel, counterexample_svg

if TYPE_CHECKING:
    from primepar.verify.report import Report

CounterexampleOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Write a picture of the counterexamples (.svg).",
        show_default=False,
    ),
]


def check_output(output: Path | None) -> None:
    """Raise `TargetError` unless a picture can have this name."""
    if output is not None and output.suffix != ".svg":
        raise TargetError(
            f"--output: expected a name that ends with .svg (the picture), got {output}"
        )


def write_picture(report: Report, output: Path | None) -> None:
    """Draw all counterexamples of a report into one file; without any there is no file."""
    if output is None:
        return
    panels = [
        Panel(result.name, result.counterexample, result.details)
        for result in report.properties
        if result.details is not None and result.counterexample is not None
    ]
    if not panels:
        typer.echo(f"nothing is refuted: {output} is not written", err=True)
        return
    write_text(output, counterexample_svg(f"{report.target}: refuted", panels))
    typer.echo(f"wrote {output}", err=True)
