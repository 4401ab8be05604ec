"""The counterexample of a primitive: the mesh, devices and blocks that its sentence names."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

from primepar.schedule.counterexample import (
    Counterexample,
    InvolvedDevice,
    Plane,
    kind_of,
    plane_around,
)
from primepar.schedule.operators import DIMS, PHASES, Phase
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence

_DEVICE = re.compile(r"\bdevice (\d+)(?: \([^()]*\))?(?: at t=(\d+))?")
_BLOCK = re.compile(r"\b[A-Za-z]+\[[\d,]*\]")
_CELL = re.compile(r"(\w+) sub-operator \(([^()]*)\)")


def of_primitive(
    primitive: Primitive, sides: tuple[int, ...], name: str, sentence: str
) -> Counterexample:
    """Look up what the sentence of a refuted property names, on the mesh of these sides."""
    sequence = Sequence.of(primitive, *sides)
    return of_mesh(sequence, dict(zip(primitive.side_names, sides, strict=True)), name, sentence)


def of_mesh(sequence: Sequence, sides: dict[str, int], name: str, sentence: str) -> Counterexample:
    """The same of a sequence, with the names that its sides have."""
    axes, places = sequence.axes, sequence.coordinates
    told = sentence.partition(": ")[2]
    devices = tuple(
        InvolvedDevice(int(rank), dict(zip(axes, places[int(rank)], strict=True)),
               int(step) if step else None)
        for rank, step in dict.fromkeys(_DEVICE.findall(told))
    )  # fmt: skip
    phase, cell, plane = _cell(sequence, told)
    return Counterexample(
        kind_of(name, sentence),
        tuple(sorted({device.rank for device in devices})),
        tuple(dict.fromkeys(_BLOCK.findall(told))),
        phase,
        cell,
        plane,
        sides=sides,
        mesh=dict(zip(axes, sequence.axis_lengths, strict=True)),
        places=tuple(places),
        devices=devices,
    )


def _cell(sequence: Sequence, told: str) -> tuple[str | None, dict[str, int] | None, Plane | None]:
    match = _CELL.search(told)
    if match is None:
        return next((phase for phase in PHASES if told.startswith(phase)), None), None, None
    cell = {dim: int(index) for dim, index in re.findall(r"(\w+)=(\d+)", match[2])}
    phase = next(phase for phase in PHASES if phase == match[1])
    grid = {str(dim): sequence.grid[dim] for dim in DIMS if dim in sequence.grid}
    return phase, cell, plane_around(grid, cell, _counts(sequence, phase))


def _counts(sequence: Sequence, phase: Phase) -> Counter[tuple[int, ...]]:
    """How often each sub-operator is computed, over all devices and steps."""
    dims = [dim for dim in DIMS if dim in sequence.grid]
    counts: Counter[tuple[int, ...]] = Counter()
    for rank, step in product(range(sequence.ranks), range(sequence.steps)):
        slices = sequence.slices(phase, rank, step)
        counts.update(product(*(slices[dim] for dim in dims)))
    return counts
