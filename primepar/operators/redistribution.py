"""Redistribution of tensors in a step: other blocks, another layout; inlining of programs.

A program of one operator that is inlined gets the tensor names of the step: its `I[0,1]` becomes a
block of the operator's input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace
from itertools import product

from msgspec import structs

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
from primepar.plan.layouts import Way
from primepar.schedule.effects import blocks_renamed
from primepar.schedule.layout import Cells, redistribution
from primepar.schedule.operators import Index, block_name, parse_block, scratch_name
from primepar.schedule.program import (
    AllGather,
    Cut,
    Join,
    Program,
    ReduceScatter,
)


def reblocked(
    builder: ProgramBuilder,
    view: View,
    cuts: Cuts,
    name: str,
    copy: bool = False,
    wide: bool | None = None,
) -> View:
    """Cut and join a view into other blocks, under the name `name`.

    A view that has these cuts already is returned unchanged; with `copy` it is always copied. The
    parts that are cut are as `wide` as the view, if nothing else is given.
    """
    fine = refined(view.cuts, cuts)
    if fine != view.cuts or (copy and cuts == view.cuts):
        view = _cut(builder, view, fine, name if fine == cuts else f"{name}.parts", wide)
    return view if view.cuts == cuts else _joined(builder, view, cuts, name)


def _cut(builder: ProgramBuilder, view: View, cuts: Cuts, name: str, wide: bool | None) -> View:
    held: list[list[Index]] = []
    for rank, indices_of_rank in enumerate(view.held):
        held.append([])
        for index in indices_of_rank:
            parts = list(product(*inside(cuts, view.cuts, index)))
            names = tuple(block_name(name, part) for part in parts)
            builder.programs[rank].append(Cut(block_name(view.name, index), names))
            held[-1] += parts
    return builder.other(view, name, cuts, held, wide)


def _joined(builder: ProgramBuilder, view: View, cuts: Cuts, name: str) -> View:
    held: list[list[Index]] = []
    for rank, indices_of_rank in enumerate(view.held):
        wholes: dict[Index, list[Index]] = {}
        for index in sorted(indices_of_rank):
            wholes.setdefault(around(view.cuts, cuts, index), []).append(index)
        for whole, parts in wholes.items():
            names = tuple(block_name(view.name, part) for part in parts)
            builder.programs[rank].append(Join(names, block_name(name, whole)))
        held.append(list(wholes))
    return builder.other(view, name, cuts, held)


def moved(
    builder: ProgramBuilder, view: View, way: Way, cuts: Cuts, name: str, shared: bool = False
) -> View:  # fmt: skip
    """Move a tensor to another layout and to the blocks of `cuts`, under the name `name`.

    Blocks without another use (not `shared`) keep their name if they are sent whole, and are freed
    on the sender. If nothing is sent and no block is cut, the view is returned unchanged.
    """
    if way.source == way.target:
        return reblocked(builder, view, cuts, name)
    cells = Cells.of(way.source, way.target).bounds([line[-1] for line in cuts])
    pieces = name if cells == cuts else f"{name}.pieces"
    view = reblocked(builder, view, cells, pieces, copy=shared)
    program = redistribution(way.source, way.target)
    take_in(builder, program, {"O": view.name}, name)
    arrived = View(view.name, cells, held_after(program, "O"), view.dims)
    return reblocked(builder, arrived, cuts, name)


def gathered(
    builder: ProgramBuilder, view: View, lines: Groups, cuts: Cuts, name: str
) -> View:  # fmt: skip
    """All-gather the blocks of each line of ranks, in its order, and join them to those of `cuts`.

    Every rank of a line holds one block of the view.
    """
    held = list(view.held)
    for line in (line for line in lines if len(line) > 1):
        blocks = tuple(block for rank in line for block in view.blocks(rank))
        for rank, block in zip(line, blocks, strict=True):
            builder.programs[rank].append(AllGather(line, block=block, blocks=blocks))
            held[rank] = tuple(index for member in line for index in view.held[member])
    return reblocked(builder, replace(view, held=tuple(held)), cuts, name)


def summed_in_parts(
    builder: ProgramBuilder, view: View, groups: Groups, parts: Several[int], cuts: Cuts, name: str
) -> View:
    """Reduce-scatter over each group of ranks: rank r keeps row block `parts[r]` of `cuts`.

    Ranks of a group with the same part all get it: their sums are all-reduced.
    """
    view = reblocked(builder, view, cuts, name)
    kept = tuple(
        tuple(index for index in indices_of_rank if index[0] == row)
        for indices_of_rank, row in zip(view.held, parts, strict=True)
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
    """Reduce-scatter the blocks of a line of ranks."""
    blocks = tuple(block for rank in line for block in view.blocks(rank))
    if len(line) > 1:
        for rank, block in zip(line, blocks, strict=True):
            builder.programs[rank].append(ReduceScatter(line, blocks=blocks, block=block))


def held_after(program: Program, tensor: str) -> Held:
    """Return the blocks of a tensor on every rank at the end of an operator's program."""
    return tuple(indices(blocks, tensor) for blocks in program.final or ())


def indices(blocks: Iterable[str], tensor: str) -> tuple[Index, ...]:
    """Return the indices of the blocks that belong to a tensor."""
    names = (name for name in blocks if name.startswith(f"{tensor}["))
    return tuple(parsed.index for parsed in map(parse_block, names) if parsed is not None)


def take_in(
    builder: ProgramBuilder,
    program: Program,
    names: Mapping[str, str],
    label: str,
    turned: Collection[str] = (),
    apart: Collection[str] = (),
) -> None:
    """Inline a program of one operator; `names` maps its tensors to those of the step.

    `label` becomes the prefix of its requests and phases. Blocks of the `turned` tensors get their
    two indices exchanged. Blocks of tensors `apart` become scratch blocks of the step's.
    """
    known: dict[str, str] = {}

    def block(name: str) -> str:
        if name not in known:
            parsed = parse_block(name)
            assert parsed is not None
            index = parsed.index[::-1] if parsed.tensor in turned else parsed.index
            new_name = block_name(names[parsed.tensor], index)
            new_name = scratch_name(new_name) if parsed.tensor in apart else new_name
            known[name] = scratch_name(new_name) if parsed.scratch else new_name
        return known[name]

    for target, instructions in zip(builder.programs, program.programs, strict=True):
        for node in instructions:
            changes = blocks_renamed(node, block)
            posted, phase = getattr(node, "request", None), getattr(node, "phase", None)
            if posted is not None:
                changes["request"] = f"{label} {posted}"
            if phase is not None:
                changes["phase"] = f"{label}.{phase}"
            target.append(structs.replace(node, **changes))
