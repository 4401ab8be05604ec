"""The classes in order of what they send for a shape, with all that is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import product

from msgspec import Struct

from primepar.schedule.lower_bound import starts_replicated, training_step
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Index
from primepar.schedule.primitive import Primitive
from primepar.schedule.tracing import home_equations, map_equations
from primepar.search.measures import SIZES, Costs, costs, on_side
from primepar.search.run import Placement, SearchClass

FITTED = {1: (4, 16), 2: (5, 5), 3: (2, 16)}
"""Axes -> side of the mesh on which layouts are compared, and the most slices of a dim there."""


class Ranked(Struct, frozen=True):
    """What the ranking prints of a class."""

    name: str
    words: str
    """Sent per device; where two axes have side s from side 3 on."""
    sent: int
    """Elements that leave a device in a training step of the shape, on average, rounded up."""
    over_bound: float | None
    """`sent` over what no schedule of a training step sends less than (`lower_bound`).

    None where an operand starts replicated.
    """
    held: int
    """Elements live at once on a device at most."""
    buffers: int
    """Of these what is more than a share of each tensor and of its gradient."""
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


ORDERS: dict[str, Callable[[Ranked], float]] = {
    "sent": lambda row: row.sent,
    "held": lambda row: row.held,
    "buffers": lambda row: row.buffers,
    "messages": lambda row: row.messages,
    "both-ways": lambda row: -row.both_ways,
    "then": lambda row: -len(row.then),
}
"""What the classes may be ranked by, the best first."""


def ranked(
    classes: Iterable[SearchClass],
    side: int,
    shape: tuple[int, int, int],
    known: Mapping[str, Placement],
    order: str = "sent",
) -> list[Ranked]:
    """The classes in an order of `ORDERS`; among equals those that send, then hold, least."""
    classes, (M, N, K) = tuple(classes), shape
    layouts = {entry.name: _layouts(entry.primitive) for entry in classes}
    rows = []
    for entry in classes:
        cost, devices = costs(entry.primitive, side, shape), on_side(entry.primitive, side).ranks
        share = 2 * Fraction(M * N + N * K + M * K, devices)
        names = tuple(name for name, place in known.items() if place.member_of == entry.name)
        rows.append(
            Ranked(
                entry.name,
                entry.formula,
                -int(-cost.sent // 1),
                _over_bound(entry.primitive, side, shape, cost),
                -int(-cost.held // 1),
                -int(-(cost.held - share) // 1),
                round(float(cost.messages), 3),
                round(float(cost.both_ways), 3),
                map_equations(entry.primitive),
                home_equations(entry.primitive),
                names,
                tuple(other for other in layouts if follows(layouts[entry.name], layouts[other])),
            )
        )
    return sorted(rows, key=lambda row: (ORDERS[order](row), row.sent, row.held, row.name))


def _over_bound(
    primitive: Primitive, side: int, shape: tuple[int, int, int], cost: Costs
) -> float | None:
    sequence = on_side(primitive, side)
    if starts_replicated(Movement(sequence)):
        return None
    return round(float(cost.sent) / training_step(*shape, sequence.ranks), 3)


Cells = frozenset[tuple[int, int]]
Layouts = dict[str, list[Cells]]
"""Where I and dO have to be and O and dI end -> what each device holds, on one small mesh."""
_PAIRS = (("O", "I"), ("I", "O"), ("dO", "dI"), ("dI", "dO"))


def _layouts(primitive: Primitive) -> Layouts:
    side, fine = FITTED[len(primitive.axis_sides)]
    sequence = on_side(primitive, side)
    movement, grid = Movement(sequence), sequence.grid
    layouts = {
        "I": movement.start("forward", "I"), "O": movement.end("forward", "O"),
        "dO": movement.start("backward", "dO"), "dI": movement.end("backward", "dI"),
    }  # fmt: skip

    def cells(tensor: str, blocks: Iterable[Index]) -> Cells:
        high, wide = (fine // grid.get(dim, 1) for dim in SIZES[tensor.removeprefix("d")])
        return frozenset(
            (row * high + y, column * wide + x)
            for row, column in blocks
            for y, x in product(range(high), range(wide))
        )

    return {tensor: [cells(tensor, blocks) for blocks in held] for tensor, held in layouts.items()}


def follows(first: Layouts, second: Layouts) -> bool:
    """Whether a second operator reads what a first one wrote, and ends where the first one starts.

    Two operators of an MLP: the O of the first is the I of the second, whose O is added to the I of
    the first. So it is with those before and after attention, where a device has whole sequences
    and heads. The devices of the second may have other names, in all tensors the same. Slices are
    counted as the triples do: another member of a class may fit where this one does not.
    """
    for pair in _PAIRS:
        one, other = pair
        device_of = {held: device for device, held in enumerate(second[other])}
        if len(device_of) == len(second[other]):
            break
    else:
        return False
    if set(first[one]) != set(device_of):
        return False
    same = [device_of[held] for held in first[one]]
    return all(first[a] == [second[b][device] for device in same] for a, b in _PAIRS)
