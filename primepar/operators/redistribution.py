"""Tensors on their way: cut into other blocks, moved to another layout; programs taken in.

What a program of one operator calls `I[0,1]` goes by the name of the tensor in the whole step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Several
from itertools import product

from primepar.operators.builder import (
    Cuts,
    Groups,
    Held,
    ProgramBuilder,
    View,
    around,
    inside,
    refined,
)
from primepar.operators.renamed_blocks import renamed
from primepar.plan.layouts import Way
from primepar.schedule.layout import Cells
from primepar.schedule.operators import Index, block_name, parse_block, scratch_name
from primepar.schedule.program import (
    Cut,
    Join,
    Program,
    ReduceScatter,
)
from primepar.schedule.redistribute import redistribution


def reblocked(
    builder: ProgramBuilder, view: View, cuts: Cuts, name: str, copy: bool = False
) -> View:
    """The same data in other blocks, under a name of its own; as it is where it lies so already.

    With `copy` it gets blocks of its own always.
    """
    fine = refined(view.cuts, cuts)
    if fine != view.cuts or (copy and cuts == view.cuts):
        view = _cut(builder, view, fine, name if fine == cuts else f"{name}.parts")
    return view if view.cuts == cuts else _joined(builder, view, cuts, name)


def _cut(builder: ProgramBuilder, view: View, cuts: Cuts, name: str) -> View:
    held: list[list[Index]] = []
    for rank, own in enumerate(view.held):
        held.append([])
        for index in own:
            parts = list(product(*inside(cuts, view.cuts, index)))
            names = tuple(block_name(name, part) for part in parts)
            builder.programs[rank].append(Cut(block_name(view.name, index), names))
            held[-1] += parts
    return builder.other(view, name, cuts, held)


def _joined(builder: ProgramBuilder, view: View, cuts: Cuts, name: str) -> View:
    held: list[list[Index]] = []
    for rank, own in enumerate(view.held):
        wholes: dict[Index, list[Index]] = {}
        for index in sorted(own):
            wholes.setdefault(around(view.cuts, cuts, index), []).append(index)
        for whole, parts in wholes.items():
            names = tuple(block_name(view.name, part) for part in parts)
            builder.programs[rank].append(Join(names, block_name(name, whole)))
        held.append(list(wholes))
    return builder.other(view, name, cuts, held)


def moved(
    builder: ProgramBuilder, view: View, way: Way, cuts: Cuts, name: str, shared: bool = False
) -> View:  # fmt: skip
    """A tensor in another layout and in the blocks of `cuts`, under a name of its own.

    Blocks that nobody else needs (not `shared`) keep their name where they move as they are, and
    are gone where they have left. Where nothing is sent and no block is cut the view is the same.
    """
    if way.source == way.target:
        return reblocked(builder, view, cuts, name)
    cells = Cells.of(way.source, way.target).bounds([line[-1] for line in cuts])
    pieces = name if cells == cuts else f"{name}.pieces"
    view = reblocked(builder, view, cells, pieces, copy=shared)
    program = redistribution(way.source, way.target)
    take_in(builder, program, {"O": view.name}, name)
    there = View(view.name, cells, held_after(program, "O"), view.dims)
    return reblocked(builder, there, cuts, name)


def summed_in_parts(
    builder: ProgramBuilder, view: View, groups: Groups, parts: Several[int], cuts: Cuts, name: str
) -> View:
    """The sum over each group of ranks, of which rank r keeps rows `parts[r]` of those of `cuts`.

    Ranks of a group that keep the same part all have it.
    """
    view = reblocked(builder, view, cuts, name)
    kept = tuple(
        tuple(index for index in own if index[0] == row)
        for own, row in zip(view.held, parts, strict=True)
    )
    view = View(view.name, view.cuts, kept, view.dims)
    for group in groups:
        owners = [[rank for rank in group if parts[rank] == row] for row in
                  sorted({parts[rank] for rank in group})]  # fmt: skip
        for line in zip(*owners, strict=True):
            _scatter(builder, view, line)
        builder.all_reduce(view, tuple(map(tuple, owners)))
    return view


def _scatter(builder: ProgramBuilder, view: View, line: tuple[int, ...]) -> None:
    """Sum the blocks of the ranks of a line, each into the rank that keeps it."""
    blocks = tuple(block for rank in line for block in view.blocks(rank))
    if len(line) > 1:
        for rank, own in zip(line, blocks, strict=True):
            builder.programs[rank].append(ReduceScatter(line, blocks=blocks, block=own))


def held_after(program: Program, tensor: str) -> Held:
    """The blocks of a tensor that every rank has at the end of an operator's program."""
    return tuple(indices(blocks, tensor) for blocks in program.final or ())


def indices(blocks: Iterable[str], tensor: str) -> tuple[Index, ...]:
    """Which blocks of a tensor are among some."""
    own = (name for name in blocks if name.startswith(f"{tensor}["))
    return tuple(parsed.index for parsed in map(parse_block, own) if parsed is not None)


def take_in(
    builder: ProgramBuilder,
    program: Program,
    names: Mapping[str, str],
    label: str,
    turned: Collection[str] = (),
) -> None:
    """Append a program of one operator, whose tensors are given their `names` in the step.

    `label` goes before its requests and phases. Blocks of the `turned` tensors have their two
    indices exchanged.
    """
    known: dict[str, str] = {}

    def block(name: str) -> str:
        if name not in known:
            parsed = parse_block(name)
            assert parsed is not None
            index = parsed.index[::-1] if parsed.tensor in turned else parsed.index
            found = block_name(names[parsed.tensor], index)
            known[name] = scratch_name(found) if parsed.scratch else found
        return known[name]

    for own, instructions in zip(builder.programs, program.programs, strict=True):
        own += [renamed(node, block, label) for node in instructions]
