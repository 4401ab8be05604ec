"""Removals that leave a valid program: the steps of `minimal`.

An instruction is removed with its partners: a message with its other end and both waits, a
collective with the calls of all members, a rank with all messages that it takes part in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, cast

from msgspec.structs import replace

from primepar.schedule.evidence import Place
from primepar.schedule.matching import Matches
from primepar.schedule.program import (
    BLOCK_LISTS,
    Collective,
    Compute,
    Group,
    Instruction,
    Message,
    Program,
    named_ranks,
)

Item = tuple[int, int, int]
"""(rank, instruction index, place in the body of a group or 0)."""
Entry = tuple[str, int, str]
"""(a field of `BLOCK_LISTS`, rank, block)."""


def units(program: Program) -> list[frozenset[Item]]:
    """Sets of instructions that can only be removed together, in order of their first ones."""
    matches = Matches(program)
    group: dict[Item, set[Item]] = {}
    for rank, nodes in enumerate(program.programs):
        for index in range(len(nodes)):
            together = set(_together(matches, (rank, index)))
            # A group has partners on several ranks: sets that meet are one.
            for item in list(together):
                together |= group.get(item, {item})
            group.update(dict.fromkeys(together, together))
    sets = {id(together): frozenset(together) for together in group.values()}
    return sorted(sets.values(), key=min)


def _together(matches: Matches, place: Place) -> Iterator[Item]:
    """Yield an instruction and its partners; a group counts as each of its messages."""
    sides = matches.sides(place)
    if place in matches.posted:
        sides = matches.sides(matches.posted[place])
    for side in sides:
        yield side
        yield from matches.partners.get(side, ())
    if not isinstance(matches.node(place), Group):
        yield (*place, 0)


def without_items(program: Program, removed: Collection[Item]) -> Program:
    """Remove instructions, and messages of groups; an empty group is removed too."""
    lists = tuple(
        tuple(
            kept
            for index, node in enumerate(nodes)
            if (kept := _rest(node, rank, index, removed)) is not None
        )
        for rank, nodes in enumerate(program.programs)
    )
    return replace(program, programs=lists)


def _rest(
    node: Instruction, rank: int, index: int, removed: Collection[Item]
) -> Instruction | None:
    if not isinstance(node, Group):
        return None if (rank, index, 0) in removed else node
    body = tuple(
        message for place, message in enumerate(node.body) if (rank, index, place) not in removed
    )
    return replace(node, body=body) if body else None


def without_ranks(program: Program, removed: Collection[int]) -> Program:
    """Remove ranks with their messages, and from groups of collectives; renumber the others.

    Raises `ValueError` if no rank is left in the program or in a group of a collective.
    """
    if len(set(removed)) == program.ranks:
        raise ValueError("a program needs a rank")
    # A message to a rank that goes has lost its other end, and goes too. An all-reduce goes on
    # among the others.
    dropped = {
        item for unit in units(program) if _is_affected(program, unit, removed) for item in unit
    }
    program = without_items(program, dropped)
    kept = [rank for rank in range(program.ranks) if rank not in removed]
    new = {rank: place for place, rank in enumerate(kept)}
    fields: dict[str, Any] = {
        name: None if getattr(program, name) is None
        else tuple(getattr(program, name)[rank] for rank in kept)
        for name in (*BLOCK_LISTS, "traffic")
    }  # fmt: skip
    lists = tuple(tuple(_renumbered(node, new) for node in program.programs[rank]) for rank in kept)
    return replace(program, ranks=len(kept), programs=lists, **fields)


def _node(program: Program, item: Item) -> Instruction:
    rank, index, place = item
    node = program.programs[rank][index]
    return node.body[place] if isinstance(node, Group) else node


def _is_affected(program: Program, unit: Collection[Item], removed: Collection[int]) -> bool:
    """Whether a message loses an end, or a collective its root, without these ranks."""
    nodes = [_node(program, item) for item in unit]
    calls = [node for node in nodes if isinstance(node, Collective)]
    if calls:
        return any(getattr(call, "root", None) in removed for call in calls)
    ends = {rank for rank, _, _ in unit}.union(*(named_ranks(node) for node in nodes))
    return not ends.isdisjoint(removed)


def _renumbered(node: Instruction, new: dict[int, int]) -> Instruction:
    """An instruction with its ranks renumbered."""
    if isinstance(node, Message):
        return replace(node, peer=new[node.peer])
    if isinstance(node, Group):
        return replace(
            node, body=tuple(cast(Any, _renumbered(message, new)) for message in node.body)
        )
    if not isinstance(node, Collective):
        return node
    # A collective over 0, 1, 2 without rank 1 is one over 0, 2 with their blocks, renumbered 0, 1.
    places = [place for place, rank in enumerate(node.group) if rank in new]
    if not places:
        raise ValueError("expected a rank in the group of a collective")
    changed: dict[str, Any] = {"group": tuple(new[node.group[place]] for place in places)}
    for name in ("blocks", "into"):
        if getattr(node, name, None):
            changed[name] = _picked(getattr(node, name), places)
    root = getattr(node, "root", None)
    return replace(node, **changed, **({} if root is None else {"root": new[root]}))


def _picked(items: tuple[Any, ...], places: Iterable[int]) -> tuple[Any, ...]:
    # A wrong program may list fewer blocks than its group has members.
    return tuple(items[place] for place in places if place < len(items))


def entries(program: Program) -> list[Entry]:
    """All entries of `BLOCK_LISTS`."""
    return [
        (name, rank, block)
        for name in BLOCK_LISTS
        for rank, blocks in enumerate(getattr(program, name) or ())
        for block in blocks
    ]


def without_entries(program: Program, removed: Collection[Entry]) -> Program:
    """Remove entries of `BLOCK_LISTS`."""
    fields: dict[str, Any] = {
        name: tuple(
            tuple(block for block in blocks if (name, rank, block) not in removed)
            for rank, blocks in enumerate(getattr(program, name))
        )
        for name in BLOCK_LISTS
        if getattr(program, name) is not None
    }
    return replace(program, **fields)


def without_fields(program: Program) -> Iterator[Program]:
    """Remove one field, one phase of the grid, or the last slice of a dim with its products."""
    for base, fields in _changes(program):
        try:
            # `grid` may name a phase whose signature went: that is no program, and no step.
            rest = replace(base, **fields)
        except ValueError:
            continue
        yield rest


def _changes(program: Program) -> Iterator[tuple[Program, dict[str, Any]]]:
    fields = ("shape", "traffic", "memory", "tensors", "phases", "grid", *reversed(BLOCK_LISTS))
    for name in fields:
        if getattr(program, name) is not None:
            yield program, {name: None}
    for field in ("phases", "tensors", "grid"):
        entry: dict[str, Any] = getattr(program, field) or {}
        for key in entry if len(entry) > 1 else ():
            yield program, {field: {name: entry[name] for name in entry if name != key}}
    for phase, grid in (program.grid or {}).items():
        for dim, slices in grid.items():
            if slices > 1:
                # The last slice, so that all others keep their numbers, and every name its meaning.
                base = without_items(program, list(_of_slice(program, phase, dim, slices - 1)))
                smaller = {**(program.grid or {}), phase: {**grid, dim: slices - 1}}
                yield base, {"grid": smaller}


def _of_slice(program: Program, phase: str, dim: str, last: int) -> Iterator[Item]:
    for rank, nodes in enumerate(program.programs):
        for index, node in enumerate(nodes):
            cell = isinstance(node, Compute) and node.phase == phase and node.sub_operator
            if cell and cell.get(dim) == last:
                yield rank, index, 0
