"""Ways to make fields of a program wrong, other than instructions; and the changes of all ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

from mutation import Json
from mutation_local import WAYS

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


FIELD_WAYS: dict[str, Callable[[Json], Iterator[Whole]]] = {
    "wrong amount": wrong_amount,
    "block elsewhere": wrong_home,
}
"""What a mutant is called -> the changes of that way to a program's fields."""
PROGRAM_WAYS = (*WAYS, *FIELD_WAYS)


def changes_of(way: str, fields: Json) -> Iterator[Whole]:
    """Every change of one way to a program."""
    if way in FIELD_WAYS:
        return FIELD_WAYS[way](fields)
    return ((where, {**fields, "programs": nodes}) for where, nodes in WAYS[way](fields))
