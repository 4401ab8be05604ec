"""The classes in order of what they send for a shape, with all that is compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from primepar.schedule.equations import home_equations, map_equations
from primepar.search.measures import costs, formula_text
from primepar.search.run import SearchClass


class Ranked(Struct, frozen=True):
    """What the ranking prints of a class."""

    name: str
    words: str
    """Sent per device, times 1 / s^2, from side 3 on."""
    sent: int
    """Elements that leave a device in a training step of the shape, on average, rounded up."""
    held: int
    """Elements live at once on a device at most."""
    messages: float
    """Of a device per step."""
    both_ways: float
    """Part of the steps in which a device sends into opposite directions of one axis."""
    maps: dict[str, str]
    homes: dict[str, str]
    known: tuple[str, ...]
    """Registered primitives that are in this class."""


def ranked(
    classes: Iterable[SearchClass], side: int, shape: tuple[int, int, int], known: Mapping[str, str]
) -> list[Ranked]:
    """The classes, those that send least first; among equals the one that holds least."""
    rows = []
    for entry in classes:
        cost = costs(entry.primitive, side, shape)
        names = tuple(name for name, place in known.items() if place == f"is {entry.name}")
        rows.append(
            Ranked(
                entry.name,
                formula_text(entry.words),
                -int(-cost.sent // 1),
                -int(-cost.held // 1),
                round(float(cost.messages), 3),
                round(float(cost.both_ways), 3),
                map_equations(entry.primitive),
                home_equations(entry.primitive),
                names,
            )
        )
    return sorted(rows, key=lambda row: (row.sent, row.held, row.name))
