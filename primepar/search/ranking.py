"""The classes in order of what they send for a shape, with all that is compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from primepar.schedule.equations import home_equations, map_equations
from primepar.schedule.lower_bound import training_step
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Index
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence
from primepar.search.measures import costs, formula_text
from primepar.search.run import Placement, SearchClass

FITTED = 5
"""Side of the mesh on which layouts are compared."""


class Ranked(Struct, frozen=True):
    """What the ranking prints of a class."""

    name: str
    words: str
    """Sent per device, times 1 / s^2, from side 3 on."""
    sent: int
    """Elements that leave a device in a training step of the shape, on average, rounded up."""
    over_bound: float
    """`sent` over what no schedule of a training step sends less than (`lower_bound`)."""
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
    then: tuple[str, ...]
    """Classes for the next operator of an MLP without redistribution (`follows`)."""


def ranked(
    classes: Iterable[SearchClass],
    side: int,
    shape: tuple[int, int, int],
    known: Mapping[str, Placement],
) -> list[Ranked]:
    """The classes, those that send least first; among equals the one that holds least."""
    classes = tuple(classes)
    layouts = {entry.name: _layouts(entry.primitive) for entry in classes}
    rows = []
    least = training_step(*shape, side**2)
    for entry in classes:
        cost = costs(entry.primitive, side, shape)
        names = tuple(name for name, place in known.items() if place.member_of == entry.name)
        rows.append(
            Ranked(
                entry.name,
                formula_text(entry.words),
                -int(-cost.sent // 1),
                round(float(cost.sent) / least, 3),
                -int(-cost.held // 1),
                round(float(cost.messages), 3),
                round(float(cost.both_ways), 3),
                map_equations(entry.primitive),
                home_equations(entry.primitive),
                names,
                tuple(other for other in layouts if follows(layouts[entry.name], layouts[other])),
            )
        )
    return sorted(rows, key=lambda row: (row.sent, row.held, row.name))


Layouts = dict[str, list[Index]]
"""Where I and dO have to be and O and dI end -> the block of each device, on one small mesh."""


def _layouts(primitive: Primitive) -> Layouts:
    movement = Movement(Sequence.of(primitive, FITTED))
    layouts = {
        "I": movement.start("forward", "I"), "O": movement.end("forward", "O"),
        "dO": movement.start("backward", "dO"), "dI": movement.end("backward", "dI"),
    }  # fmt: skip
    return {tensor: [min(blocks) for blocks in held] for tensor, held in layouts.items()}


def follows(first: Layouts, second: Layouts) -> bool:
    """Whether a second operator reads what a first one wrote, and ends where the first one starts.

    Two operators of an MLP: the O of the first is the I of the second, whose O is added to the I of
    the first. The devices of the second may have other names, in all tensors the same. Slices are
    counted as the triples do: another member of a class may fit where this one does not.
    """
    device_of = {block: device for device, block in enumerate(second["I"])}
    same = [device_of[block] for block in first["O"]]
    pairs = (("dO", "dI"), ("I", "O"), ("dI", "dO"))
    return all(first[one] == [second[other][device] for device in same] for one, other in pairs)
