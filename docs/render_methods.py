"""A page of the site for every method of the library, made from the method's own file.

Run by `make docs` before mkdocs. The words of a page are the docstrings of the module and of its
classes, its equations come from calling the maps with symbols, its pictures and numbers from the
programs, in which what is sent has to be equal to the formula. The pages go to docs/methods/, which
is made anew and is not kept in git.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from math import prod
from pathlib import Path
from typing import NamedTuple

from formulas import map_latex, with_formulas, with_papers
from method_sections import method_rows, method_section

from primepar.partition import METHODS, PRIMITIVES
from primepar.pictures.grid_svg import grid_svg
from primepar.pictures.space_time import space_time
from primepar.reference.check import formula
from primepar.schedule import Linear, Movement, Primitive, Sequence, lower
from primepar.schedule.ledger import moves, moves_text, peak, sent_by_ranks
from primepar.schedule.lower_bound import starts_replicated, training_step
from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import Phase
from primepar.schedule.sequence import Nesting
from primepar.schedule.tracing import home_equations, map_equations

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "methods"
SHAPE = Linear(M=144, N=72, K=288)
LARGE = Linear(M=256, N=64, K=256)
COUNTED = {
    1: ((2,), (3,), (4,)),
    2: ((2, 1), (2, 2), (2, 4), (3, 2)),
    3: ((1, 2, 3), (2, 1, 2), (2, 2, 1), (2, 2, 3)),
}
"""Number of sides -> the sides at which a method is counted on its page."""
SMALL = {1: (2,), 2: (2, 2), 3: (2, 1, 2)}
LARGER = {1: (3,), 2: (3, 3), 3: (3, 1, 2)}
"""Number of sides -> those of the pictures, and those at which moves are counted."""
RECTANGLE = ("r", "a", "c", "b")
OVERVIEW = {
    4: {
        ("d",): (4,), ("r", "c"): (2,), ("r", "c", "e"): (2, 1), RECTANGLE: (1, 1, 4),
        ("i", "j", "e"): (2, 2, 1),
    },
    64: {
        ("d",): (64,), ("r", "c"): (8,), ("r", "c", "e"): (4, 4), ("i", "j", "l"): (4,),
        RECTANGLE: (4, 1, 4), ("i", "j", "e"): (4, 4, 4),
    },
}  # fmt: skip
"""Devices -> axes -> sides; a method without such a mesh has no number there."""
EXERCISES = {"summa": 21, "tesseract": 23, "three_d": 20, "sequence_parallel": 22}
"""Page -> the exercise in which a part of the method is to be written."""
HEAD = """---
description: >-
  Tensor-parallel methods next to one another: what each sends and holds on every device.
---

# All methods

One product, `O = I W`, and its two gradients, on many devices: every primitive of the library, with
the map of its forward, and what it sends and holds on each device. Each method has a page with all
of its maps, its pictures, and what moves. The pictures have two devices along each axis, a
rectangular mesh two rows of four. Among two, a broadcast or a gather is a message, and the last way
of a travelling sum a reduce-scatter."""


class Counts(NamedTuple):
    """Elements on one device: sent, by count and by formula, resident, and most at a time."""

    sent: float
    formula: float
    resident: int
    peak: int
    ratio: float | None
    """Sent over the lower bound."""


def methods() -> list[tuple[str, list[str]]]:
    """Every module of the library with the names of its methods, in the registry's order."""
    known = {**PRIMITIVES, **METHODS}
    pages = groupby(known, key=lambda name: known[name].__module__)
    return [(module, list(names)) for module, names in pages]


def page_name(module: str) -> str:
    """The page of a module, `summa.md`; of `pipeline.gpipe` it is `pipeline_gpipe.md`."""
    return module.removeprefix("primepar.partition.").replace(".", "_") + ".md"


def count(name: str, sequence: Sequence, shape: Linear) -> Counts:
    """Count the program of a training step. Exits where a device sends what its formula does not.

    That emulated devices send and compute the same is left to tests/reference and tests/partition.
    """
    operator = with_batch(shape, sequence)
    program, movement = lower(sequence, operator), Movement(sequence)
    expected, size = formula(sequence, operator), Meaning(program).size
    if expected is None:
        raise SystemExit(f"{name}: expected a formula of what is sent, got none")
    for sent in sent_by_ranks(program):
        if sent != expected:
            raise SystemExit(
                f"{name}: expected {expected} elements to leave each device, got {sent}"
            )
    resident = sum(
        prod(operator.block_shape(tensor, sequence.grid))
        * max(map(len, movement.start("forward", tensor)))
        for tensor in ("I", "W")
    )
    most = max(peak(program, rank, size) for rank in range(program.ranks))
    bound = training_step(operator.B * operator.M, operator.N, operator.K, sequence.ranks)
    ratio = float(sent) / bound if bound and not starts_replicated(movement) else None
    return Counts(float(sent), float(expected), resident, most, ratio)


def with_batch(shape: Linear, sequence: Sequence) -> Linear:
    """As many rows, in one sample for each slice of the batch."""
    cuts = sequence.grid.get("B", 1)
    return Linear(M=shape.M // cuts, N=shape.N, K=shape.K, B=cuts)


def title(module: str) -> str:
    """What the docstring of a module is about."""
    heading = (inspect.getdoc(sys.modules[module]) or "").partition("\n")[0]
    return re.split(r"[:,.]| on an? ", heading)[0]


def page(module: str, names: list[str], folder: Path) -> str:
    """Return the page of one method; its pictures are drawn into `folder`."""
    heading, *paragraphs = (inspect.getdoc(sys.modules[module]) or "").split("\n\n")
    parts = [f"---\ndescription: >-\n  {heading}\n---", f"# {title(module)}", heading]
    for paragraph in paragraphs:
        is_block = paragraph.startswith(" ") and "$" not in paragraph
        formulas = paragraph if is_block else with_formulas(paragraph)
        prose = re.sub(r" (?=Held per \w+)", "\n\n", formulas)
        parts.append(with_papers(prose))
    for name in names:
        parts += section(name, folder) if name in PRIMITIVES else method_section(name, folder)
    if number := EXERCISES.get(page_name(module).removesuffix(".md")):
        parts.append(f"Write a part of it yourself: `primepar exercise {number}`.")
    source = f"{module.replace('.', '/')}.py"
    parts.append(f'This page is made from its source:\n\n??? quote "{source}"\n')
    parts[-1] += f'\n    ```python\n    --8<-- "{source}"\n    ```'
    return "\n\n".join(parts) + "\n"


def section(name: str, folder: Path) -> Iterator[str]:
    """What one primitive is, how it moves, and what it costs."""
    primitive = PRIMITIVES[name]()
    sides = len(primitive.side_names)
    small, large = (Sequence.of(primitive, *of[sides]) for of in (SMALL, LARGER))
    yield f"## {name}"
    yield summary(primitive)
    yield equations(primitive)
    yield picture(f"{name}-1", small, ("forward",), folder)
    yield picture(f"{name}-2", small, ("backward", "gradient"), folder)
    moved = moves_text(moves(lower(large)))
    yield f"A training step under `{large}` moves, counted on one device: {moved}."
    yield "\n".join(table(name, primitive))
    # tests/verify/test_verify_primitive.py proves each of the library, in as many seconds.
    yield f"`primepar verify {name}`: proved for {Nesting((primitive,), (name,)).scope}."


def summary(primitive: Primitive) -> str:
    """The first sentence of the class."""
    return with_papers((inspect.getdoc(primitive) or "").partition("\n")[0])


def equations(primitive: Primitive) -> str:
    """The maps, as one where they are the same, and the resident layouts."""
    maps = map_equations(primitive)
    if len(set(maps.values())) == 1:
        maps = {"in each phase": maps["forward"]}
    homes = home_equations(primitive)
    where = r"\text{where the last step leaves each tensor}"
    rest = r",\quad ".join(map(map_latex, homes.values())) if homes else where
    lines = [rf"\text{{{phase}}} &\quad {map_latex(equation)}" for phase, equation in maps.items()]
    lines.append(rf"\text{{home}} &\quad {rest}")
    rows = " \\\\\n".join(lines)
    return f"$$\n\\begin{{aligned}}\n{rows}\n\\end{{aligned}}\n$$"


def picture(name: str, sequence: Sequence, phases: tuple[Phase, ...], folder: Path) -> str:
    """Draw some phases of a training step; return the line that shows them."""
    places = [dict(zip(sequence.axes, place, strict=True)) for place in sequence.coordinates]
    program = lower(sequence, phases=phases)
    grid = space_time(program, str(sequence), places, sequence.steps)
    (folder / f"{name}.svg").write_text(grid_svg(grid), encoding="utf-8")
    return f"![{sequence}: {' and '.join(phases)}]({name}.svg){{ .schedule }}"


def table(name: str, primitive: Primitive) -> Iterator[str]:
    """Counts next to the formula on several meshes."""
    yield f"Elements on each device, counted for `M={SHAPE.M}`, `N={SHAPE.N}`, `K={SHAPE.K}`:"
    yield ""
    header = (
        "| mesh | devices | sent | sent, by the formula | `I` and `W` resident | most at a time "
    )
    yield header + "| sent over the [lower bound](../lower-bounds.md) |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for sides in COUNTED[len(primitive.side_names)]:
        sequence = Sequence.of(primitive, *sides)
        counts = count(name, sequence, SHAPE)
        cells = " | ".join(f"{number:,.10g}" for number in counts[:4])
        nearness = "starts replicated" if counts.ratio is None else f"{counts.ratio:.2f}"
        yield f"| `{sequence}` | {sequence.ranks} | {cells} | {nearness} |"


def overview() -> str:
    """Return the table of all methods, on the meshes of `OVERVIEW`."""
    lines = [
        HEAD,
        "",
        "| method | primitive | forward | "
        + " | ".join(f"sent on {devices} | most held on {devices}" for devices in OVERVIEW)
        + " |",
        "|---|---|---|" + "--:|--:|" * len(OVERVIEW),
    ]
    for module, names in methods():
        for name in filter(PRIMITIVES.__contains__, names):
            link = f"[{title(module)}]({page_name(module)})"
            map_cells = f"`{name}` | `{map_equations(PRIMITIVES[name]())['forward']}`"
            lines.append(f"| {link} | {map_cells} | {' | '.join(cells(name))} |")
    lines += [
        "",
        f"Elements on each device in a training step with `M={LARGE.M}`, `N={LARGE.N}`, "
        f"`K={LARGE.K}`, counted in the programs of {' and '.join(map(str, OVERVIEW))} devices, of "
        "which `summa-rectangular` makes meshes of 1 x 4 and 4 x 16. Most held is at any moment, "
        "of all tensors, gradients and buffers. Each method's page counts on smaller meshes.",
        "",
        *method_rows(),
        "",
        "[The fifth tutorial](../tutorials/05_the_whole_family.md) sets the methods side by side, "
        "and [plans](../plans.md) use them for whole models.",
    ]
    return "\n".join(lines) + "\n"


def cells(name: str) -> Iterator[str]:
    """What a primitive sends and holds on each mesh of the overview."""
    primitive = PRIMITIVES[name]()
    for meshes in OVERVIEW.values():
        sides = meshes.get(tuple(primitive.axis_sides))
        if sides is None:
            yield from ("", "")
            continue
        sequence = Sequence.of(primitive, *sides)
        program = lower(sequence, with_batch(LARGE, sequence))
        size = Meaning(program).size
        most = max(peak(program, rank, size) for rank in range(program.ranks))
        yield from (f"{float(max(sent_by_ranks(program))):,.10g}", f"{most:,}")


def main() -> None:
    """Write the overview and a page for every module of the library."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir()
    for module, names in methods():
        print(f"counting {module}", file=sys.stderr)
        path = PAGES / page_name(module)
        path.write_text(page(module, names, PAGES), encoding="utf-8")
    print("counting all methods on large meshes", file=sys.stderr)
    (PAGES / "index.md").write_text(overview(), encoding="utf-8")


if __name__ == "__main__":
    main()
