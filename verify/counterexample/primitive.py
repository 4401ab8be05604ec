"""Counterexamples of primitives as data: the mesh, devices and blocks that a sentence names."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

from primepar.schedule.counterexample import (
    Counterexample,
    InvolvedDevice,
    Kind,
    Plane,
    plane_around,
)
from primepar.schedule.operators import DIMS, PHASES, Phase
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence

_KINDS: tuple[tuple[str, str, Kind], ...] = (
    ("coverage", "got none", "never-done"),
    ("coverage", "expected one", "done-twice"),
    ("coverage", "", "outside-the-grid"),
    ("completion", "got neither", "sum-lost"),
    ("completion", "to have a home", "homeless"),
    ("completion", "", "unfinished-sum"),
    ("races", "expected a wait for", "never-awaited"),
    ("races", "", "race"),
    ("memory", "", "over-memory"),
    ("traffic", "", "wrong-traffic"),
    ("", "on some device at t=", "nowhere"),
    ("", " to be resident on some device", "homeless"),
    ("", " here, got ", "wrong-place"),
    ("", "", "wrong-data"),
)
_DEVICE = re.compile(r"\bdevice (\d+)(?: \([^()]*\))?(?: at t=(\d+))?")
_BLOCK = re.compile(r"\b[A-Za-z]+\[[\d,]*\]")
_CELL = re.compile(r"(\w+) sub-operator \(([^()]*)\)")


def of_primitive(
    primitive: Primitive, sides: tuple[int, ...], name: str, sentence: str
) -> Counterexample:
    """Return what the sentence of a refuted property names, on the mesh of these sides."""
    sequence = Sequence.of(primitive, *sides)
    return of_mesh(sequence, dict(zip(primitive.side_names, sides, strict=True)), name, sentence)


def of_mesh(sequence: Sequence, sides: dict[str, int], name: str, sentence: str) -> Counterexample:
    """The same for a sequence; `sides` are by name."""
    axes, places = sequence.axes, sequence.coordinates
    text = sentence.partition(": ")[2]
    devices = tuple(
        InvolvedDevice(int(rank), dict(zip(axes, places[int(rank)], strict=True)),
               int(step) if step else None)
        for rank, step in dict.fromkeys(_DEVICE.findall(text))
    )  # fmt: skip
    phase, cell, plane = _cell(sequence, text)
    return Counterexample(
        kind_of(name, sentence),
        tuple(sorted({device.rank for device in devices})),
        tuple(dict.fromkeys(_BLOCK.findall(text))),
        phase,
        cell,
        plane,
        sides=sides,
        mesh=dict(zip(axes, sequence.axis_lengths, strict=True)),
        places=tuple(places),
        devices=devices,
    )


def _cell(sequence: Sequence, text: str) -> tuple[str | None, dict[str, int] | None, Plane | None]:
    match = _CELL.search(text)
    if match is None:
        return next((phase for phase in PHASES if text.startswith(phase)), None), None, None
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


def kind_of(name: str, sentence: str) -> Kind:
    """The kind of counterexample that the sentence of a property describes."""
    return next(kind for prop, words, kind in _KINDS if prop in ("", name) and words in sentence)
