"""`primepar list`: the registered primitives."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator

import typer
from msgspec import Struct

from primepar.commands.options import JsonOption, json_text
from primepar.partition import PRIMITIVES
from primepar.schedule import Primitive
from primepar.schedule.equations import map_equations


class Entry(Struct, frozen=True):
    """What the list says of one primitive."""

    name: str
    summary: str
    axes: dict[str, str]
    """Axis -> name of its side."""
    maps: dict[str, str]
    """Phase -> dim slices, as equations."""
    source: str


def list_(json: JsonOption = False) -> None:
    """List the registered primitives: their maps, their axes and where they come from."""
    entries = [_entry(name, primitive) for name, primitive in PRIMITIVES.items()]
    text = json_text(entries) if json else "\n".join("\n".join(_lines(e)) for e in entries)
    typer.echo(text.rstrip("\n"))


def _entry(name: str, primitive: type[Primitive]) -> Entry:
    module = inspect.getdoc(sys.modules[primitive.__module__]) or ""
    source = re.search(r"^Source: (.*?)(?:\n\n|\Z)", module, flags=re.DOTALL | re.MULTILINE)
    summary = (inspect.getdoc(primitive) or "").partition("\n")[0]
    return Entry(
        name=name,
        summary=summary,
        axes=primitive().axis_sides,
        maps=map_equations(primitive()),
        source=" ".join(source[1].split()) if source else "",
    )


def _lines(entry: Entry) -> Iterator[str]:
    yield typer.style(entry.name, bold=True)
    yield f"  {entry.summary}"
    yield _paragraph("axes", ", ".join(f"{a} of side {side}" for a, side in entry.axes.items()))
    if len(set(entry.maps.values())) == 1:
        yield _paragraph("phases", f"{next(iter(entry.maps.values()))}  in each")
    else:
        yield from (_paragraph(phase, equations) for phase, equations in entry.maps.items())
    yield _paragraph("source", entry.source)
    yield ""


def _paragraph(label: str, text: str) -> str:
    width = shutil.get_terminal_size((100, 24)).columns
    return textwrap.fill(text, width, initial_indent=f"  {label:10}", subsequent_indent=" " * 12)
