"""The digits of all slice indices on one mesh: each expression is evaluated once, on arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from primepar.errors import PrimitiveError
from primepar.schedule.expression import evaluate
from primepar.schedule.primitive import ANY, AnyDigit, Primitive
from primepar.schedule.tracing import Digits, maps_of

Coordinates = tuple[int, ...]
SliceIndex = tuple[int | AnyDigit, ...]
"""A slice index as a map gives it; what is left out at the end is open too."""
Places = Sequence[tuple[Coordinates, int | None]]
"""Devices, each with a step or without one."""
MOST_SLICES = 1_000_000
"""An index beyond is a mistake in the map, and not worth counting up to."""


def steps_on(primitive: Primitive, sides: tuple[int, ...]) -> int:
    """Steps of a phase. Raises `PrimitiveError` if that is no positive integer."""
    steps = _evaluated(primitive, sides, "steps", maps_of(primitive).steps, {})
    if not isinstance(steps, int) or steps < 1:
        raise PrimitiveError(
            f"{type(primitive).__name__}.steps: expected a positive integer, got {steps!r}"
        )
    return steps


def digits_on(
    primitive: Primitive, sides: tuple[int, ...], what: str, traced: Digits, places: Places
) -> list[dict[str, SliceIndex]]:
    """Dim -> digits of `traced`, for every place of the mesh with these sides.

    Raises `PrimitiveError` for the first digit that is no slice index; `what` names the map.
    """
    import numpy as np

    axes = zip(*(device for device, _ in places), strict=True)
    values = {axis: np.array(along) for axis, along in zip(primitive.axis_sides, axes, strict=True)}
    values["t"] = np.array([step for _, step in places])
    columns: list[list[SliceIndex]] = []
    for dim, index in traced.items():
        digits = []
        for digit in index:
            value = digit if digit is ANY else _evaluated(primitive, sides, what, digit, values)
            column: list[Any] = np.broadcast_to(np.asarray(value), len(places)).tolist()
            _check(primitive, sides, f"{what}: expected a slice index of {dim}", column, places)
            digits.append(column)
        columns.append(list(zip(*digits, strict=True)))
    rows = zip(*columns, strict=True) if columns else repeat((), len(places))
    return [dict(zip(traced, row, strict=True)) for row in rows]


def _evaluated(
    primitive: Primitive,
    sides: tuple[int, ...],
    what: str,
    traced: Any,
    values: Mapping[str, Any],
) -> Any:
    try:
        return evaluate(traced, {**values, **dict(zip(primitive.side_names, sides, strict=True))})
    except PrimitiveError as error:
        raise PrimitiveError(f"{type(primitive).__name__}.{what}: {error}, sides {sides}") from None


def _check(
    primitive: Primitive, sides: tuple[int, ...], what: str, column: list[Any], places: Places
) -> None:
    for digit, (device, step) in zip(column, places, strict=True):
        if digit is ANY or 0 <= digit < MOST_SLICES:
            continue
        axes = zip(primitive.axis_sides, device, strict=True)
        place = [f"{axis}={value}" for axis, value in axes]
        place += [] if step is None else [f"t={step}"]
        bound = f"below {MOST_SLICES}" if digit >= MOST_SLICES else "that is 0 or more"
        raise PrimitiveError(
            f"{type(primitive).__name__}.{what} {bound}, got {digit!r} at "
            f"{', '.join(place) or 'the device'}, sides {sides}: wrap it with % of the side"
        )
