"""`primepar search`: primitives that nobody wrote down, each proved for every side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from primepar.api.target import COMMAND_LINE, operator_of, resolve
from primepar.commands.options import JsonOption, file_option, json_text
from primepar.commands.progress import progress
from primepar.commands.verify import EXIT_CODES, paint
from primepar.errors import TargetError
from primepar.files import check_ending, write_text
from primepar.schedule import Primitive

if TYPE_CHECKING:
    from primepar.search.ranking import Ranked
    from primepar.search.run import Placement

SIDES = {1: 4, 2: 4, 3: 2}
"""Axes that are searched -> side of the mesh of the ranking."""


def search(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="Place this primitive among the classes: a registered name, or file.py:Class.",
            show_default=False,
        ),
    ] = None,
    axes: Annotated[int, typer.Option(help="Axes of the mesh: 1, 2 or 3.")] = 2,
    shape: Annotated[
        str, typer.Option(metavar="M,N,K", help="Rank by what is sent for this product.")
    ] = "4096,4096,4096",
    side: Annotated[
        int | None,
        typer.Option(
            min=2, help="Side of the mesh of the ranking. [default: 4, with three axes 2]"
        ),
    ] = None,
    by: Annotated[
        Literal["sent", "held", "buffers", "messages", "both-ways", "then"],
        typer.Option(help="Rank by this column, the best first."),
    ] = "sent",
    output: Annotated[
        Path | None,
        file_option(
            "Write the classes into a Python file, which the other commands take.",
            "--output",
            "-o",
            metavar="FOUND.PY",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Search the maps (device, step) -> (M, N, K) for primitives, and prove those that are kept.

    No known primitive is a candidate; one that it finds is named. The counts state what was
    tried. A TARGET is proved first: one that is wrong for some side is refused with its
    counterexample, and ends with 1.
    """
    if axes not in SIDES:
        raise TargetError(f"--axes: expected 1, 2 or 3, got {axes}: write --axes 3")
    side = side or SIDES[axes]
    check_ending("--output", output, py="")
    product = operator_of(shape, COMMAND_LINE)
    sizes = product.B * product.M, product.N, product.K
    if target is not None:
        _place(target, json)
    from primepar.search.ranking import ranked
    from primepar.search.run import search as searched
    from primepar.search.written import python_text

    with progress() as tick:
        result = searched(axes, tick)
    rows = ranked(result.classes, side, sizes, result.known, by)
    if output is not None:
        write_text(output, python_text(result.classes))
    if json:
        typer.echo(
            json_text(
                {
                    "axes": axes,
                    "side": side,
                    "shape": sizes,
                    "counts": {count.name: count.number for count in result.counts},
                    "classes": rows,
                    "known": {name: place.text for name, place in result.known.items()},
                }
            ),
            nl=False,
        )
    else:
        typer.echo(
            "\n".join(
                [
                    *(f"{c.name:11} {c.number:>11,}  {c.what}" for c in result.counts),
                    "",
                    *_table(rows, " x ".join([str(side)] * axes), sizes),
                    "",
                    *(f"{name:20} {place.text}" for name, place in result.known.items()),
                ]
            )
        )
        if output is not None:
            typer.echo(f"wrote {output}")
    raise typer.Exit(0 if result.is_complete else 3)


def _place(target: str, json: bool) -> None:
    """Prove a primitive, and print where it is among the classes."""
    primitive = resolve(target)
    if not isinstance(primitive, Primitive):
        raise TargetError(
            f"{target}: expected a primitive, got another target: write the name of one "
            "that `primepar list` prints, or file.py:Class"
        )
    from primepar.search.run import candidates, placed
    from primepar.verify.primitive.proof import verify_primitive

    report = verify_primitive(primitive, target)
    place: Placement | None = None
    if report.verdict == "proved":
        axes = len(primitive.axis_sides)
        place = placed(primitive, candidates(axes) if axes in SIDES else ())
    if json:
        answer = {"target": target, "verdict": report.verdict, "placed": place and place.text}
        typer.echo(json_text({**answer, "near": place and place.near}), nl=False)
    elif place is None:
        typer.echo("\n".join(report.lines("", paint=paint)))
    else:
        typer.echo(f"{target}: {paint('proved', 'proved')} for {report.scope}")
        typer.echo(f"  {place.text}")
    raise typer.Exit(EXIT_CODES[report.verdict])


def _table(rows: list[Ranked], mesh: str, sizes: tuple[int, int, int]) -> Iterator[str]:
    M, N, K = sizes
    yield f"for M={M} N={N} K={K} on {mesh} devices, elements per device:"
    width = max(len(row.name) for row in rows)
    head = f"{'class':{width}} {'sent':>12} {'/bound':>6} {'held':>12} {'buffers':>12}"
    yield f"{head} {'messages':>8} {'both ways':>9} {'then':>4}  words"
    for row in rows:
        known = f"  = {', '.join(row.known)}" if row.known else ""
        over = "" if row.over_bound is None else f"{row.over_bound:.2f}"
        costs = f"{row.sent:>12,} {over:>6} {row.held:>12,} {row.buffers:>12,} {row.messages:>8.2f}"
        costs += f" {row.both_ways:>9.0%} {len(row.then):>4}"
        yield f"{row.name:{width}} {costs}  {row.words}{known}"
