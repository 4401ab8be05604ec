"""Whether a map is right on every small mesh, by calling it as plain Python with integers.

What is asked of one mesh is in `attack_mesh`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Any, NamedTuple

from attack_mesh import Mesh, TooLargeError, WrongMeshError

from primepar import Primitive

MOST_PLACES, MORE_PLACES = 640, 2_200
"""Devices times steps of a mesh that is looked at: at first, and at a second look."""


class Ruling(NamedTuple):
    """The ruling of the oracle: `right` on all meshes, or `wrong` on the first one that is.

    It is `open` where only the choice between several holders of a partial sum decides, which the
    definition of a primitive leaves to the routing.
    """

    verdict: str
    property: str = ""
    sides: tuple[int, ...] = ()
    place: str = ""
    meshes: int = 0
    """Meshes that were looked at."""


def choose(condition: Any, then: Any, otherwise: Any) -> Any:
    """`where` on integers; `~`, `&` and `|` mean logic.

    `~True` is -2 and `~False` is -1: the lowest bit of a number is its truth, and stays so under
    `~`, `&` and `|`.
    """
    return then if condition & 1 else otherwise


def load(source: str, name: str) -> Callable[[], Primitive]:
    """The class of that name in a source text, with the oracle's own `where`.

    Raises whatever the text raises.
    """
    space: dict[str, Any] = {"__name__": "attacked"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of ~ on a bool
        exec(compile(source, name, "exec"), space)
    if "where" in space:
        space["where"] = choose
    made: Callable[[], Primitive] = space[name]
    return made


def oracle(
    source: str, name: str, *, twice: bool = False, larger: bool = False, longest: int = 99
) -> Ruling:
    """Rule on a map, for sides up to `longest`.

    `twice` calls it again at the end, to see whether it is a function.
    """
    try:
        made = load(source, name)
        primitive = made()
        axes = axes_of(primitive)
    except Exception as error:
        return Ruling("wrong", "map", (), f"{type(error).__name__}: {error}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        choices = [sides for sides in meshes(axes, larger) if max(sides, default=1) <= longest]
        return _on_meshes(primitive, choices, MORE_PLACES if larger else MOST_PLACES, twice)


def _on_meshes(
    primitive: Primitive, choices: list[tuple[int, ...]], most: int, twice: bool
) -> Ruling:
    seen: list[Mesh] = []
    is_open: tuple[int, ...] = ()
    axes = axes_of(primitive)
    for sides in choices:
        mesh = Mesh(primitive, axes, sides)
        try:
            certain = mesh.check(most)
        except TooLargeError:
            continue
        except WrongMeshError as fault:
            return Ruling("wrong", fault.property, sides, fault.place, len(seen) + 1)
        is_open = is_open or (() if certain else sides)
        seen.append(mesh)
    for mesh in seen if twice else ():
        if mesh.phases != Mesh(primitive, axes, mesh.sides).phases_or_none():
            other = "it gives other slices than before"
            return Ruling("wrong", "map", mesh.sides, other, len(seen))
    return Ruling("open" if is_open else "right", "", is_open, "", len(seen))


def axes_of(primitive: Primitive) -> dict[str, str]:
    """Axis -> its side."""
    axes = primitive.axes
    return dict(axes) if isinstance(axes, Mapping) else dict.fromkeys(axes, "s")


def meshes(axes: dict[str, str], larger: bool = False) -> list[tuple[int, ...]]:
    """Lengths of the sides, small meshes first: each from 1 to 8, to 6 where there are three."""
    names = list(dict.fromkeys(axes.values()))
    most = (8 if len(names) < 3 else 6) + 5 * larger

    def devices(sides: tuple[int, ...]) -> int:
        length = dict(zip(names, sides, strict=True))
        return prod(length[side] for side in axes.values())

    return sorted(product(range(1, most + 1), repeat=len(names)), key=lambda n: (devices(n), n))
