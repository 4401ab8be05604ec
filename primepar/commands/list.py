"""`primepar list`: the registered primitives and methods."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer
from msgspec import Struct

from primepar.commands.options import JsonOption, json_text
from primepar.partition import METHODS, PRIMITIVES
from primepar.schedule import Linear, Movement, Primitive, Sequence
from primepar.schedule.lower_bound import CUBE, starts_replicated, training_step
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.tracing import map_equations


class Entry(Struct, frozen=True, omit_defaults=True):
    """What the list prints of a primitive, or of a method with sizes."""

    name: str
    summary: str
    axes: dict[str, str] = {}
    """Axis -> name of its side."""
    maps: dict[str, str] = {}
    """Phase -> dim slices, as equations."""
    sizes: dict[str, str] = {}
    """Size -> its default."""
    source: str = ""
    devices: int = 0
    """Devices of the smallest mesh, with two along each axis."""
    ratio: float | None = None
    """What a step of a large cube sends there over the lower bound; None if it starts replicated.

    Where a primitive has no formula of what it sends there is none either.
    """


class CaseEntry(Struct, frozen=True):
    """What the list prints of a public case."""

    name: str
    """The target of its wrong program; with `:fixed` it is that of the fixed one."""
    title: str
    refuted: str
    """The property that the wrong program does not have."""
    threads: tuple[str, ...]


def list_(
    cases: Annotated[
        bool, typer.Option("--cases", help="List the public cases: published bugs as programs.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the methods of the library: maps and axes, or sizes, and sources."""
    if cases:
        public = _public_cases()
        lines = "\n".join("\n".join(_case_lines(case)) for case in public)
        typer.echo((json_text(public) if json else lines).rstrip("\n"))
        return
    entries = [
        *(_primitive_entry(name, primitive) for name, primitive in PRIMITIVES.items()),
        *(_method_entry(name, method) for name, method in METHODS.items()),
    ]
    text = json_text(entries) if json else "\n".join("\n".join(_lines(e)) for e in entries)
    typer.echo(text.rstrip("\n"))


def _public_cases() -> list[CaseEntry]:
    from primepar.preflight.cases import CASES, PREFIX

    return [
        CaseEntry(f"{PREFIX}{name}", case.title, case.refuted, case.threads)
        for name, case in CASES.items()
    ]


def _case_lines(case: CaseEntry) -> Iterator[str]:
    yield typer.style(case.name, bold=True)
    yield f"  {case.title}"
    yield _paragraph("refuted", case.refuted)
    yield _paragraph("thread", ", ".join(case.threads))
    yield ""


def _primitive_entry(name: str, primitive: type[Primitive]) -> Entry:
    sequence = Sequence.of(primitive(), *(2 for _ in primitive().side_names))
    sent = sequence.elements[0].sent(Linear(CUBE, CUBE, CUBE))
    ratio = None
    if sent is not None and not starts_replicated(Movement(sequence)):
        ratio = float(sent) / training_step(CUBE, CUBE, CUBE, sequence.ranks)
    return Entry(
        name=name,
        summary=_summary(primitive),
        axes=primitive().axis_sides,
        maps=map_equations(primitive()),
        source=_source(primitive),
        devices=sequence.ranks,
        ratio=ratio,
    )


def _method_entry(name: str, method: type[ProgramMethod]) -> Entry:
    sizes = {size: str(value) for size, value in method().sizes.items()}
    return Entry(name=name, summary=_summary(method), sizes=sizes, source=_source(method))


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _source(kind: type) -> str:
    """The paragraph of its module that names the source, without the signs of a formula."""
    module = inspect.getdoc(sys.modules[kind.__module__]) or ""
    source = re.search(r"^Source: (.*?)(?:\n\n|\Z)", module, flags=re.DOTALL | re.MULTILINE)
    return " ".join(source[1].replace("$", "").split()) if source else ""


def _lines(entry: Entry) -> Iterator[str]:
    yield typer.style(entry.name, bold=True)
    yield f"  {entry.summary}"
    if entry.sizes:
        yield _paragraph(
            "sizes", ", ".join(f"{size}={value}" for size, value in entry.sizes.items())
        )
    else:
        axes = ", ".join(f"{axis} of side {side}" for axis, side in entry.axes.items())
        yield _paragraph("axes", axes)
    if entry.maps and len(set(entry.maps.values())) == 1:
        yield _paragraph("phases", f"{next(iter(entry.maps.values()))}  in each")
    else:
        yield from (_paragraph(phase, equations) for phase, equations in entry.maps.items())
    if entry.devices:
        where = f"on {entry.devices} devices, M = N = K"
        times = f"{entry.ratio:.2f} times the lower bound {where}" if entry.ratio else ""
        yield _paragraph("sends", times or f"starts replicated {where}: no lower bound")
    yield _paragraph("source", entry.source)
    yield ""


def _paragraph(label: str, text: str) -> str:
    width = shutil.get_terminal_size((100, 24)).columns
    return textwrap.fill(text, width, initial_indent=f"  {label:10}", subsequent_indent=" " * 12)
