"""Searches for the smallest mesh on which a primitive is wrong, device by device and step by step.

It is independent of Z3: it reads the concrete maps and the movement derived from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from math import prod
from time import perf_counter

from primepar.schedule.deadline import in_time
from primepar.schedule.evidence import Homeless, MapFault, Misaligned, Miscomputed, Nowhere, Part
from primepar.schedule.expression import evaluate
from primepar.schedule.movement import NEXT_USE, Movement
from primepar.schedule.operators import (
    DIMS,
    HOMES,
    PHASES,
    PRODUCTS,
    Index,
    Phase,
    block_name,
    tensor_dims,
)
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence
from primepar.schedule.tracing import maps_of
from primepar.verify.counterexample.primitive import MeshFault

Sides = tuple[int, ...]
LONGEST_SIDE = 6
MOST_DEVICES, MOST_DEVICES_AFTER = 64, 16
MOST_SUB_OPERATORS, MOST_PLACES = 4096, 100_000
"""Largest grid that is searched for all faults, and most devices times steps of any search."""


def side_choices(primitive: Primitive, hints: Iterable[Sides] = ()) -> list[Sides]:
    """Sides to search, fewest devices first: all short ones, and `hints` if not too long."""
    names = primitive.side_names
    axes = primitive.axis_sides.values()

    def devices(sides: Sides) -> int:
        length = dict(zip(names, sides, strict=True))
        return prod(length[side] for side in axes)

    short = product(range(1, LONGEST_SIDE + 1), repeat=len(names))
    choices = {sides for sides in (*short, *hints) if devices(sides) <= MOST_DEVICES}
    return sorted(choices, key=lambda sides: (devices(sides), sides))


def smallest_faults(
    meshes: Iterable[Sequence], properties: Iterable[str]
) -> Iterator[tuple[str, MeshFault]]:
    """Yield each property that is wrong, with its fault on the first of some meshes that has one.

    A mesh is given by the sequence on it; smaller ones come first. After the first fault, faults of
    other properties are searched on small meshes only. Raises `UnansweredError` at the deadline.
    """
    open_names = [name for name in FAULTS if name in set(properties)]
    wrong: set[str] = set()
    for sequence in in_time(meshes):
        # There is a counterexample already; more of them are worth small meshes alone.
        if wrong and sequence.ranks > MOST_DEVICES_AFTER:
            break
        movement = Movement(sequence)
        large = prod(sequence.grid.values()) > MOST_SUB_OPERATORS
        for name in open_names:
            # Blocks are sets for each device and step; coverage only visits the sub-operators.
            if name in wrong or (large and name != "coverage"):
                continue
            clock = perf_counter()
            fault = next(FAULTS[name](movement), None)
            if fault is not None:
                wrong.add(name)
                yield name, MeshFault(sequence, fault, perf_counter() - clock)


def meshes_of(primitive: Primitive, hints: Iterable[Sides]) -> Iterator[Sequence]:
    """Yield the meshes of a primitive that have a step, and not too many, fewest devices first.

    Where there is no step, the claim about steps fails.
    """
    for sides in side_choices(primitive, hints):
        along = dict(zip(primitive.side_names, sides, strict=True))
        devices = prod(along[side] for side in primitive.axis_sides.values())
        if 1 <= int(evaluate(maps_of(primitive).steps, along)) <= MOST_PLACES // devices:
            yield Sequence.of(primitive, *sides)


def coverage_faults(movement: Movement) -> Iterator[MapFault]:
    """Yield sub-operators that are computed twice, then those that are never computed."""
    sequence = movement.sequence
    dims = [dim for dim in DIMS if dim in sequence.grid]
    for phase in PHASES:
        places: dict[Index, tuple[int, int]] = {}
        # By visiting, not by counting: a sub-operator that is met again names both devices.
        for rank, step in in_time(product(range(sequence.ranks), range(sequence.steps))):
            slices = sequence.slices(phase, rank, step)
            for index in product(*(slices[dim] for dim in dims)):
                if index in places:
                    devices = sequence.device(*places[index]), sequence.device(rank, step)
                    yield Miscomputed(phase, dict(zip(dims, index, strict=True)), devices)
                places.setdefault(index, (rank, step))
        computed = Part(len(places), prod(sequence.grid.values()))
        for index in product(*(range(sequence.grid[dim]) for dim in dims)):
            if index not in places:
                cell = dict(zip(dims, index, strict=True))
                yield Miscomputed(phase, cell, computed=computed)


def placement_faults(movement: Movement) -> Iterator[MapFault]:
    """Yield operand blocks that a device needs at a step and no device has at the step before."""
    sequence = movement.sequence
    # With homes the operands of step 0 come from there. Without, they are where the phase before
    # left them, which is a question of alignment.
    first = 0 if sequence.has_homes else 1
    for phase in PHASES:
        for step, tensor in in_time(product(range(first, sequence.steps), PRODUCTS[phase].reads)):
            before = movement.held(phase, tensor, step - 1) if step else []
            resident = movement.resident(phase, tensor) if sequence.has_homes else []
            # Anywhere on the mesh: which device sends is for the routing to choose.
            available = frozenset[Index]().union(*before, *resident)
            home = tensor.removeprefix("d") if sequence.has_homes else None
            for rank, needed in enumerate(movement.held(phase, tensor, step)):
                for index in sorted(needed - available):
                    device = sequence.device(rank, step)
                    yield Nowhere(phase, device, block_name(tensor, index), home)


def completion_faults(movement: Movement) -> Iterator[MapFault]:
    """Yield sums without a home; without declared homes, a sum stays where it is finished."""
    sequence = movement.sequence
    for phase in PHASES if sequence.has_homes else ():
        output = PRODUCTS[phase].writes
        homes = frozenset[Index]().union(*movement.home(output))
        for step, rank in in_time(product(range(sequence.steps), range(sequence.ranks))):
            for index in sorted(movement.held(phase, output, step)[rank] - homes):
                tensor, device = output.removeprefix("d"), sequence.device(rank, step)
                yield Homeless(tensor, block_name(output, index), phase, device)


def alignment_faults(movement: Movement) -> Iterator[MapFault]:
    """Yield tensors that are not where the next phase starts with them, or that have no home."""
    if movement.sequence.has_homes:
        yield from _homeless(movement)
        return
    for (phase, tensor), following in NEXT_USE.items():
        yield from _misaligned(movement, phase, tensor, following, tensor)
    yield from _misaligned(movement, "forward", "O", "backward", "dO")
    yield from _misaligned(movement, "gradient", "dW", "forward", "W")


def _homeless(movement: Movement) -> Iterator[MapFault]:
    grid = movement.sequence.grid
    for tensor in HOMES:
        homes = frozenset[Index]().union(*movement.home(tensor))
        dims = [dim for dim in tensor_dims(tensor) if dim in grid]
        resident = Part(len(homes), prod(grid[dim] for dim in dims))
        for index in product(*(range(grid[dim]) for dim in dims)):
            if index not in homes:
                yield Homeless(tensor, block_name(tensor, index), resident=resident)


def _misaligned(
    movement: Movement, phase: Phase, tensor: str, following: Phase, next_tensor: str
) -> Iterator[MapFault]:
    arrived: list[set[Index]] = [set(blocks) for blocks in movement.end(phase, tensor)]
    # What realigns in the last step counts as being there; O and dW make no such hop.
    for hop in movement.phases[phase].operands[-1]:
        if hop.tensor == tensor:
            arrived[hop.target].add(hop.index)
    for rank, needed in enumerate(movement.start(following, next_tensor)):
        for index in sorted(needed - arrived[rank]):
            held = tuple(block_name(tensor, have) for have in sorted(arrived[rank]))
            yield Misaligned(
                following, movement.sequence.device(rank), block_name(next_tensor, index),
                phase, held, may_hop=next_tensor == tensor,
            )  # fmt: skip


FAULTS: dict[str, Callable[[Movement], Iterator[MapFault]]] = {
    "coverage": coverage_faults,
    "placement": placement_faults,
    "completion": completion_faults,
    "alignment": alignment_faults,
}
"""Property -> its faults on one mesh; a derived hop is posted at both ends, so none hangs."""
