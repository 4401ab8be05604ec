"""The pages of methods with sizes: words of the module, facts, a picture, and what is proved."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from formulas import with_papers

from primepar.api import verify
from primepar.api.drawings import method_drawing
from primepar.partition import METHODS
from primepar.reference.check import check_program


def method_section(name: str, folder: Path) -> Iterator[str]:
    """What one method is, for its default sizes. Exits where it is wrong or not proved."""
    kind = METHODS[name]
    method = kind()
    report = check_program(method.program(), method.text)
    if not report.equal:
        raise SystemExit(f"{name}: {report.message}")
    proof = verify(kind)
    if proof.verdict != "proved":
        raise SystemExit(f"{name}: expected a proof, got {proof.verdict}")
    (folder / f"{name}.svg").write_text(method_drawing(method).svg, encoding="utf-8")
    yield f"## {name}"
    yield with_papers((inspect.getdoc(kind) or "").partition("\n")[0])
    yield f"![{method.text}]({name}.svg){{ .schedule }}"
    yield f"`primepar show {name}` prints for `{method.text}`:"
    yield "\n".join(facts(method.facts()))
    yield f"`primepar verify {name}` prints:"
    yield f"```text\n{proof}\n```"


def facts(quantities: dict[str, str]) -> Iterator[str]:
    """The facts as a table."""
    yield "| quantity | value |"
    yield "|---|---|"
    for quantity, value in quantities.items():
        yield f"| {quantity} | {value} |"


def method_rows() -> Iterator[str]:
    """What methods with sizes are, and a line for each: its page, its sizes and its summary."""
    if not METHODS:
        return
    yield (
        "A pipeline, a period between averages, the tiles of one GPU and chunks of memory are no "
        "maps of slices. Each of these methods has sizes, and a program for any sizes that fit "
        "together. Two tutorials are about them: "
        "[time as three things](../tutorials/10_time_as_three_things.md) and "
        "[memory as a schedule](../tutorials/11_memory_as_a_schedule.md)."
    )
    yield ""
    yield "| method | sizes | what it is |"
    yield "|---|---|---|"
    for name, kind in METHODS.items():
        page = kind.__module__.removeprefix("primepar.partition.").replace(".", "_")
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        yield f"| [{name}]({page}.md) | {', '.join(kind().sizes)} | {summary} |"
