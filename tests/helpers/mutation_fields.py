"""Ways to make fields of a program wrong, other than instructions; and the changes of all ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

from mutation import REDUCING, Json, Nodes, at, calls, changed, on_members, places
from mutation_local import WAYS as RANK_WAYS
from mutation_several import SEVERAL_WAYS

Whole = tuple[str, Json]
"""Where it was changed, and the changed program."""


def wrong_amount(fields: Json) -> Iterator[Whole]:
    """The bound of memory, or what one rank should send, is a little more or less."""
    bound = fields.get("memory") or {}
    for key, by in product([key for key in bound if bound[key] is not None], (-2, -1, 1, 4)):
        if bound[key] + by >= 0:
            memory = {**bound, key: bound[key] + by}
            yield f"memory of the {key}: {by:+d}", {**fields, "memory": memory}
    stated = fields.get("traffic") or ()
    for rank, halves in product(range(len(stated)), (-2, 1, 2)):
        amount = Fraction(stated[rank]) + Fraction(halves, 2)
        if amount >= 0:
            text = amount.numerator if amount.denominator == 1 else str(amount)
            yield (
                f"traffic of rank {rank}: {amount}",
                {**fields, "traffic": [*stated[:rank], text, *stated[rank + 1 :]]},
            )


def wrong_home(fields: Json) -> Iterator[Whole]:
    """A block is at first, or should be at the end, on no rank, on the next one, or there too."""
    for key, rank in product(("initial", "final"), range(fields["ranks"])):
        for block in (fields.get(key) or [[]] * fields["ranks"])[rank]:
            lists = [list(blocks) for blocks in fields[key]]
            lists[rank].remove(block)
            yield f"{key}, rank {rank}: no {block}", {**fields, key: lists}
            other = (rank + 1) % fields["ranks"]
            if block not in lists[other]:
                there = [[*held, block] if r == other else held for r, held in enumerate(lists)]
                text = f"{key}: {block} on rank {other}"
                yield f"{text}, not {rank}", {**fields, key: there}
                both = [[*held, block] if r == rank else held for r, held in enumerate(there)]
                yield f"{text} and {rank}", {**fields, key: both}


def wrong_scale(fields: Json) -> Iterator[Whole]:
    """A coefficient is another one, is twice there or is missing, or a final block is averaged."""
    programs = [
        *_scaled_instructions(fields),
        *(change for block, group in _shared(fields) for change in _averaged(fields, block, group)),
    ]
    for where, nodes in programs:
        yield where, {**fields, "programs": nodes}
    for name, signature in (fields.get("phases") or {}).items():
        if signature.get("reduction", "sum") == "sum":
            for scale in _others(signature):
                phases = {**fields["phases"], name: {**signature, "scale": scale}}
                yield f"phase {name}: {scale}", {**fields, "phases": phases}


def _others(entry: Json) -> list[str]:
    """No scale, or a wrong one; or the one that is there once more."""
    scale = Fraction(entry.get("scale", "1"))
    return [str(scale * scale), "1"] if scale != 1 else ["1/2", "4"]


def _scaled_instructions(fields: Json) -> Iterator[tuple[str, list[Nodes]]]:
    for rank, index, node in places(fields, "compute"):
        for scale in _others(node):
            yield f"{at(rank, index)}: {scale}", changed(fields, rank, index, scale=scale)
    for members in calls(fields, *REDUCING):
        rank, index = members[0]
        for scale in _others(fields["programs"][rank][index]):
            yield f"{at(rank, index)}: {scale}", changed(fields, rank, index, scale=scale)

            def change(nodes: Nodes, place: int, scale: str = scale) -> Nodes:
                return [{**n, "scale": scale} if i == place else n for i, n in enumerate(nodes)]

            yield f"{at(rank, index)} for all: {scale}", on_members(fields, members, change)


def _shared(fields: Json) -> Iterator[tuple[str, list[int]]]:
    """The blocks that several ranks end with, and these ranks."""
    final = fields.get("final") or []
    for block in dict.fromkeys(block for blocks in final for block in blocks):
        group = [rank for rank, blocks in enumerate(final) if block in blocks]
        if len(group) > 1:
            yield block, group


def _averaged(fields: Json, block: str, group: list[int]) -> Iterator[tuple[str, list[Nodes]]]:
    """Ranks average a block that they all have: harmless over the right count."""
    for count in (len(group), len(group) + 1):
        mean = {"op": "all_reduce", "group": group, "block": block, "scale": f"1/{count}"}
        nodes = enumerate(fields["programs"])
        yield (
            f"{block}: {mean['scale']}",
            [[*of_rank, mean] if rank in group else of_rank for rank, of_rank in nodes],
        )


FIELD_WAYS: dict[str, Callable[[Json], Iterator[Whole]]] = {
    "wrong amount": wrong_amount,
    "block elsewhere": wrong_home,
    "wrong scale": wrong_scale,
}
"""What a mutant is called -> the changes of that way to a program's fields."""
WAYS = {**RANK_WAYS, **SEVERAL_WAYS}
PROGRAM_WAYS = (*WAYS, *FIELD_WAYS)


def changes_of(way: str, fields: Json) -> Iterator[Whole]:
    """Every change of one way to a program."""
    if way in FIELD_WAYS:
        return FIELD_WAYS[way](fields)
    return ((where, {**fields, "programs": nodes}) for where, nodes in WAYS[way](fields))
