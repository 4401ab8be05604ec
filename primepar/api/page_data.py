"""What the page that moves is given: maps as text, and the events of emulated runs.

A run is packed: its strings once, its events as rows of numbers, all deflated, as a library of runs
is to fit into one file. `primepar/pictures/page/events.js` reads it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import Any
from zlib import compress

from primepar.errors import EmulationError, PrimitiveError
from primepar.partition import METHODS, PRIMITIVES
from primepar.schedule import Linear, Primitive, Program, Sequence, lower
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.tracing import maps_of

LONGEST_SIDE = 6
MOST_DEVICES = {1: 6, 2: 36}
"""Meshes of a map whose runs are in the page: up to this side, and by the number of axes up to this
many devices; 8 where there are more."""
Data = dict[str, Any]


def library_data() -> Data:
    """The whole library: every map and every method."""
    maps = (map_data(name, primitive()) for name, primitive in PRIMITIVES.items())
    methods = (method_data(name, method()) for name, method in METHODS.items())
    return {"targets": [*maps, *methods], "first": "primepar"}


def page_data(name: str, target: object) -> Data:
    """One target alone. Raises `EmulationError` for a program that does not run to its end."""
    if isinstance(target, Primitive):
        data = map_data(name, target)
    elif isinstance(target, ProgramMethod):
        data = method_data(name, target)
    else:
        assert isinstance(target, Sequence | Program)
        data = program_data(name, target)
    return {"targets": [data], "first": name}


def map_data(name: str, primitive: Primitive, runs: bool = True) -> Data:
    """A map: its expressions, and its run on every mesh that is not too large.

    The page evaluates the expressions itself where there is no run, as on a mesh where the map is
    wrong and the emulator refuses it.
    """
    maps = maps_of(primitive)
    return {
        "name": name, "label": primitive.label or type(primitive).__name__,
        "about": _summary(primitive), "axes": primitive.axis_sides, "steps": str(maps.steps),
        "phases": {phase: _index_texts(slices) for phase, slices in maps.phases.items()},
        "homes": {tensor: _index_texts(slices) for tensor, slices in maps.homes.items()},
        "keeps": list(primitive.keeps), "virtual": list(primitive.virtual),
        "runs": {",".join(map(str, sides)): run for sides, run in _runs(primitive)} if runs else {},
    }  # fmt: skip


def method_data(name: str, method: ProgramMethod) -> Data:
    """A method that is no map, with the run of its sizes."""
    run = packed_run(method.program(), untimed=method.untimed)
    return {
        "name": name, "label": method.text, "about": _summary(method), "facts": method.facts(),
        "runs": {"": run},
    }  # fmt: skip


def program_data(name: str, placed: Sequence | Program) -> Data:
    """A program, or a sequence on its mesh, with its run."""
    sequence = placed if isinstance(placed, Sequence) else None
    program = placed if isinstance(placed, Program) else _lowered(placed)
    return {"name": name, "label": str(sequence or name), "about": "",
            "runs": {"": packed_run(program, sequence)}}  # fmt: skip


def packed_run(
    program: Program, sequence: Sequence | None = None, untimed: Iterable[str] = ()
) -> str:
    """The events of an emulated run and what each device held, packed. Raises `EmulationError`."""
    from primepar.api.drawings import emulated

    run = emulated(program, sequence, untimed)
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    events = [
        [event.rank, number(event.op), number(event.block), _time(event.start), _time(event.end),
         number(event.phase), -1 if event.peer is None else event.peer, event.elements,
         number(" ".join(f"{dim}={index}" for dim, index in event.sub_operator.items())),
         number(" ".join(event.reads)), number(",".join(map(str, event.group)))]
        for event in run.events
        if event.op != "wait"  # the message that it ends has its times
    ]  # fmt: skip
    held = [
        [rank, _time(entry.time), number(entry.block), entry.elements]
        for rank, device in enumerate(run.devices)
        for entry in device.ledger
        if entry.elements
    ]
    axes = [] if sequence is None else list(sequence.axes)
    places = [] if sequence is None else [list(place) for place in sequence.coordinates]
    steps = 0 if sequence is None else sequence.steps
    return packed({"ranks": program.ranks, "axes": axes, "places": places, "steps": steps,
                   "texts": list(texts), "events": events, "held": held})  # fmt: skip


def packed(data: Any) -> str:
    """Data as deflated JSON, in letters."""
    return b64encode(compress(json.dumps(data, separators=(",", ":")).encode(), 9)).decode()


def _runs(primitive: Primitive) -> Iterator[tuple[tuple[int, ...], str]]:
    names, axes = primitive.side_names, tuple(primitive.axis_sides.values())
    for sides in product(range(1, LONGEST_SIDE + 1), repeat=len(names)):
        along = dict(zip(names, sides, strict=True))
        devices = prod(along[side] for side in axes)
        if devices > MOST_DEVICES.get(len(axes), 8) or max(sides) - min(sides) > 1:
            continue
        sequence = Sequence.of(primitive, *sides)
        try:
            yield sides, packed_run(_lowered(sequence), sequence)
        except (EmulationError, PrimitiveError):
            continue  # the page draws a wrong map from its own evaluation


def _lowered(sequence: Sequence) -> Program:
    return lower(sequence, Linear.smallest(sequence.grid))


def _index_texts(slices: Any) -> dict[str, list[str]]:
    """Dim -> its digits as text; one that is left open is `*`."""
    return {dim: list(map(str, index)) for dim, index in slices.items()}


def _summary(target: object) -> str:
    return (type(target).__doc__ or "").strip().partition("\n")[0]


def _time(time: float) -> float:
    return int(time) if time == int(time) else round(time, 3)
