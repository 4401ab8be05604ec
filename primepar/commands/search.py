"""`primepar search`: primitives that nobody wrote down, each proved for every side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.api.resolve_target import resolve
from primepar.commands.options import JsonOption, json_text, operator_of
from primepar.commands.progress import progress
from primepar.commands.verify import EXIT_CODES, paint
from primepar.errors import TargetError
from primepar.files import write_text
from primepar.schedule import Primitive

if TYPE_CHECKING:
    from primepar.search.ranking import Ranked
    from primepar.search.run import Placement, SearchCounts

AXES = (2,)
"""The numbers of axes that are searched."""


def search(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="Place this primitive among the classes: a registered name, or file.py:Class.",
            show_default=False,
        ),
    ] = None,
    axes: Annotated[int, typer.Option(help="Axes of the mesh, all of side s.")] = 2,
    shape: Annotated[
        str, typer.Option(metavar="M,N,K", help="Rank by what is sent for this product.")
    ] = "4096,4096,4096",
    side: Annotated[int, typer.Option(min=2, help="Side of the mesh of the ranking.")] = 4,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOUND.PY",
            help="Write the classes into a Python file, which the other commands take.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Search the maps (device, step) -> (M, N, K) for primitives, and prove those that are kept.

    No known primitive is a candidate; one that it finds is named. The counts state what was
    tried. A TARGET is proved first: one that is wrong for some side is refused with its
    counterexample, and ends with 1.
    """
    if axes not in AXES:
        raise TargetError(
            f"--axes: expected {' or '.join(map(str, AXES))}, got {axes}: write --axes {AXES[-1]}"
        )
    if output is not None and output.suffix != ".py":
        raise TargetError(f"--output: expected a name that ends with .py, got {output}")
    product = operator_of(shape)
    sizes = product.B * product.M, product.N, product.K
    if target is not None:
        _place(target, json)
    from primepar.search.ranking import ranked
    from primepar.search.run import search as searched
    from primepar.search.written import python_text

    with progress() as tick:
        result = searched(tick)
    rows = ranked(result.classes, side, sizes, result.known)
    if output is not None:
        write_text(output, python_text(result.classes))
    if json:
        typer.echo(
            json_text(
                {
                    "axes": axes,
                    "side": side,
                    "shape": sizes,
                    "counts": result.counts,
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
                    *_count_lines(result.counts),
                    "",
                    *_table(rows, side, sizes),
                    "",
                    *(f"{name:20} {place.text}" for name, place in result.known.items()),
                ]
            )
        )
        if output is not None:
            typer.echo(f"wrote {output}")
    raise typer.Exit(0 if result.counts.proved == result.counts.kept else 3)


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
        place = placed(primitive, candidates())
    if json:
        answer = {"target": target, "verdict": report.verdict, "placed": place and place.text}
        typer.echo(json_text({**answer, "near": place and place.near}), nl=False)
    elif place is None:
        typer.echo("\n".join(report.lines("", paint=paint)))
    else:
        typer.echo(f"{target}: {paint('proved', 'proved')} for {report.scope}")
        typer.echo(f"  {place.text}")
    raise typer.Exit(EXIT_CODES[report.verdict])


def _count_lines(counts: SearchCounts) -> Iterator[str]:
    rows = (
        ("maps tried", counts.maps, "coefficients of r, c and t in M, N and K from -1, 0, 1, 2"),
        ("covering", counts.covering, "on every mesh"),
        ("distinct", counts.distinct, f"{counts.exchanged} where M, N and K may be exchanged"),
        ("aligned", counts.aligned, "triples without homes"),
        ("kept", counts.kept, f"{counts.classes} where M, N and K may be exchanged"),
        ("proved", counts.proved, "for every side, each certified"),
    )
    yield from (f"{name:11} {count:>9,}  {what}" for name, count, what in rows)


def _table(rows: list[Ranked], side: int, sizes: tuple[int, int, int]) -> Iterator[str]:
    M, N, K = sizes
    yield f"for M={M} N={N} K={K} on {side} x {side} devices, elements per device:"
    head = f"{'class':13} {'sent':>12} {'/bound':>6} {'held':>12} {'messages':>8} {'both ways':>9}"
    yield f"{head}  words over s^2"
    for row in rows:
        known = f"  = {', '.join(row.known)}" if row.known else ""
        costs = f"{row.sent:>12,} {row.over_bound:>6.2f} {row.held:>12,} {row.messages:>8.2f}"
        yield f"{row.name:13} {costs} {row.both_ways:>9.0%}  {row.words}{known}"
