"""Counterexamples of primitives, to be drawn: the mesh, devices and blocks of a map fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from math import prod

from primepar.schedule.evidence import (
    Counterexample,
    Homeless,
    InvolvedDevice,
    Kind,
    MapFault,
    Misaligned,
    Miscomputed,
    NoStep,
    Nowhere,
    OtherNumber,
    OtherThanFormula,
    OutOfRange,
    OverFormula,
    Plane,
    plane_around,
)
from primepar.schedule.operators import DIMS
from primepar.schedule.sequence import Sequence
from primepar.schedule.words import map_sentence
from primepar.verify.report import PropertyResult

MOST_DEVICES, MOST_PLACES = 256, 20_000
"""Of a mesh that is drawn; devices times steps, and sub-operators, of a plane that is counted."""


@dataclass(frozen=True)
class MeshFault:
    """A fault of a sequence on its mesh, and the seconds that it took to find it."""

    sequence: Sequence
    fault: MapFault
    seconds: float


def refuted(name: str, wrong: MeshFault, seconds: float = 0.0) -> PropertyResult:
    """The result of a property that a fault refutes; `seconds` is the time before its search."""
    sentence = map_sentence(wrong.sequence.mesh, wrong.fault)
    details = of_map(wrong.sequence, wrong.fault)
    return PropertyResult(name, "refuted", seconds + wrong.seconds, sentence, details=details)


def of_map(sequence: Sequence, fault: MapFault) -> Counterexample:
    """Return what a fault of a sequence involves."""
    kind, devices, blocks = _parts(fault)
    mesh = sequence.mesh
    # A picture of 100 x 100 devices shows nothing; the sentence names the one that matters.
    is_drawn = prod(mesh.axes.values()) <= MOST_DEVICES
    return Counterexample(
        kind,
        tuple(sorted({device.rank for device in devices})),
        tuple(dict.fromkeys(blocks)),
        getattr(fault, "phase", None),
        getattr(fault, "sub_operator", None),
        _plane(sequence, fault) if isinstance(fault, Miscomputed) and is_drawn else None,
        sides=mesh.sides,
        mesh=mesh.axes,
        places=tuple(sequence.coordinates) if is_drawn else (),
        devices=tuple(devices),
    )


def _parts(fault: MapFault) -> tuple[Kind, tuple[InvolvedDevice, ...], tuple[str, ...]]:
    """The kind, devices and blocks of a fault; first the block that is missed."""
    match fault:
        case Miscomputed(devices=devices):
            return "done-twice" if devices else "never-done", devices, ()
        case OtherNumber() | NoStep():
            return "outside-the-grid", (), ()
        case OutOfRange(device=device):
            return "outside-the-grid", (device,), ()
        case Nowhere(device=device, block=block, home=home):
            # Without homes somebody else would have to have it; with homes its own home is at
            # fault.
            return "nowhere" if home is None else "homeless", (device,), (block,)
        case Homeless(device=device, block=block):
            return "homeless", () if device is None else (device,), (block,)
        case Misaligned(device=device, block=block, held=held):
            return "wrong-place", (device,), (block, *held)
        case OverFormula(device=device):
            return "over-memory", (device,), ()
        case OtherThanFormula():
            return "wrong-traffic", (), ()


def _plane(sequence: Sequence, fault: Miscomputed) -> Plane | None:
    """How often the sub-operators near one are computed, over all devices and steps."""
    grid = {str(dim): sequence.grid[dim] for dim in DIMS if dim in sequence.grid}
    if max(sequence.ranks * sequence.steps, prod(grid.values())) > MOST_PLACES:
        return None
    counts: Counter[tuple[int, ...]] = Counter()
    for rank, step in product(range(sequence.ranks), range(sequence.steps)):
        slices = sequence.slices(fault.phase, rank, step)
        counts.update(product(*(slices[dim] for dim in DIMS if dim in grid)))
    return plane_around(grid, fault.sub_operator, counts)
