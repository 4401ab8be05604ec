"""Searches for the smallest mesh on which a primitive is wrong, device by device and step by step.

It is independent of Z3: it reads the concrete maps and the movement derived from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from time import perf_counter

from primepar.schedule.deadline import in_time
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

Sides = tuple[int, ...]
LONGEST_SIDE = 6
MOST_DEVICES, MOST_DEVICES_AFTER = 64, 16
MOST_SUB_OPERATORS, MOST_PLACES = 4096, 100_000
"""Largest grid that is searched for all faults, and most devices times steps of any search."""


@dataclass(frozen=True)
class MeshFault:
    """A fault at the smallest sides, as one sentence."""

    sides: Sides
    sentence: str
    seconds: float


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
    meshes: Iterable[tuple[Sides, str, Sequence]], properties: Iterable[str]
) -> Iterator[tuple[str, MeshFault]]:
    """Yield each property that is wrong, with its fault on the first of some meshes that has one.

    A mesh is given by its sides, its text, and the sequence on it; smaller ones come first.

    After the first fault, faults of other properties are searched on small meshes only. Raises
    `UnansweredError` at the deadline.
    """
    open_names = [name for name in FAULTS if name in set(properties)]
    wrong: set[str] = set()
    for sides, text, sequence in in_time(meshes):
        if wrong and sequence.ranks > MOST_DEVICES_AFTER:
            break
        movement = Movement(sequence)
        large = prod(sequence.grid.values()) > MOST_SUB_OPERATORS
        for name in open_names:
            if name in wrong or (large and name != "coverage"):
                continue
            clock = perf_counter()
            fault = next(FAULTS[name](movement), None)
            if fault is not None:
                sentence = f"{text}: {fault}"
                wrong.add(name)
                yield name, MeshFault(sides, sentence, perf_counter() - clock)


def meshes_of(
    primitive: Primitive, hints: Iterable[Sides]
) -> Iterator[tuple[Sides, str, Sequence]]:
    """Yield the meshes of a primitive that have a step, and not too many, fewest devices first.

    Where there is no step, the claim about steps fails.
    """
    for sides in side_choices(primitive, hints):
        along = dict(zip(primitive.side_names, sides, strict=True))
        devices = prod(along[side] for side in primitive.axis_sides.values())
        if 1 <= int(evaluate(maps_of(primitive).steps, along)) <= MOST_PLACES // devices:
            sequence = Sequence.of(primitive, *sides)
            yield sides, mesh_text(primitive.side_names, sides, sequence.axis_lengths), sequence


def mesh_text(names: Iterable[str], sides: Sides, lengths: Sides) -> str:
    """The text for a mesh with axes of some lengths, `s=2 (2x2 devices)`."""
    named = ", ".join(f"{name}={side}" for name, side in zip(names, sides, strict=True))
    mesh = "x".join(map(str, lengths)) or "1"
    return f"{named or 'any side'} ({mesh} device{'s' * (prod(lengths) > 1)})"


def coverage_faults(movement: Movement) -> Iterator[str]:
    """Yield sub-operators that are computed twice, then those that are never computed."""
    sequence = movement.sequence
    dims = [dim for dim in DIMS if dim in sequence.grid]
    for phase in PHASES:
        places: dict[Index, tuple[int, int]] = {}
        for rank, step in in_time(product(range(sequence.ranks), range(sequence.steps))):
            slices = sequence.slices(phase, rank, step)
            for index in product(*(slices[dim] for dim in dims)):
                if index in places:
                    yield (
                        f"{_sub_operator(phase, dims, index)}: expected one device to compute it "
                        f"once, got {_at(sequence, *places[index])} and "
                        f"{_at(sequence, rank, step)}: give one of them another"
                    )
                places.setdefault(index, (rank, step))
        for index in product(*(range(sequence.grid[dim]) for dim in dims)):
            if index not in places:
                yield (
                    f"{_sub_operator(phase, dims, index)}: expected one device to compute it, got "
                    f"none: only {len(places)} of {prod(sequence.grid.values())} are computed"
                )


def _sub_operator(phase: Phase, dims: Iterable[str], index: Index) -> str:
    inside = ", ".join(f"{dim}={slice_}" for dim, slice_ in zip(dims, index, strict=True))
    return f"{phase} sub-operator ({inside})"


def _at(sequence: Sequence, rank: int, step: int) -> str:
    return f"{sequence.place(rank)} at t={step}"


def placement_faults(movement: Movement) -> Iterator[str]:
    """Yield operand blocks that a device needs at a step and no device has at the step before."""
    sequence = movement.sequence
    first = 0 if sequence.has_homes else 1
    for phase in PHASES:
        for step, tensor in in_time(product(range(first, sequence.steps), PRODUCTS[phase].reads)):
            before = movement.held(phase, tensor, step - 1) if step else []
            resident = movement.resident(phase, tensor) if sequence.has_homes else []
            available = frozenset[Index]().union(*before, *resident)
            for rank, needed in enumerate(movement.held(phase, tensor, step)):
                for index in sorted(needed - available):
                    place, block = _at(sequence, rank, step), block_name(tensor, index)
                    yield f"{phase}, {place}: " + _nowhere(sequence, tensor, block, step - 1)


def _nowhere(sequence: Sequence, tensor: str, block: str, before: int) -> str:
    if sequence.has_homes:
        home = tensor.removeprefix("d")
        return (
            f"expected {block} to be resident on some device, got it on none: "
            f"let the home of {home} assign it to one"
        )
    return (
        f"expected {block} to be on some device at t={before}, got it on none: "
        f"let a device use it at t={before}"
    )


def completion_faults(movement: Movement) -> Iterator[str]:
    """Yield sums without a home; without declared homes, a sum stays where it is finished."""
    sequence = movement.sequence
    for phase in PHASES if sequence.has_homes else ():
        output = PRODUCTS[phase].writes
        homes = frozenset[Index]().union(*movement.home(output))
        for step, rank in in_time(product(range(sequence.steps), range(sequence.ranks))):
            for index in sorted(movement.held(phase, output, step)[rank] - homes):
                block = block_name(output, index)
                place = _at(sequence, rank, step)
                yield (
                    f"{phase}, {place}: expected the sum {block} to have a home, got none: "
                    f"let the home of {output.removeprefix('d')} assign it to some device"
                )


def alignment_faults(movement: Movement) -> Iterator[str]:
    """Yield tensors that are not where the next phase starts with them, or that have no home."""
    if movement.sequence.has_homes:
        yield from _homeless(movement)
        return
    for (phase, tensor), following in NEXT_USE.items():
        yield from _misaligned(movement, phase, tensor, following, tensor)
    yield from _misaligned(movement, "forward", "O", "backward", "dO")
    yield from _misaligned(movement, "gradient", "dW", "forward", "W")


def _homeless(movement: Movement) -> Iterator[str]:
    grid = movement.sequence.grid
    for tensor in HOMES:
        homes = frozenset[Index]().union(*movement.home(tensor))
        dims = [dim for dim in tensor_dims(tensor) if dim in grid]
        for index in product(*(range(grid[dim]) for dim in dims)):
            if index not in homes:
                yield (
                    f"home of {tensor}: expected {block_name(tensor, index)} to be resident on "
                    f"some device, got it on none: only {len(homes)} of "
                    f"{prod(grid[dim] for dim in dims)} blocks are resident"
                )


def _misaligned(
    movement: Movement, phase: Phase, tensor: str, following: Phase, next_tensor: str
) -> Iterator[str]:
    sequence = movement.sequence
    arrived: list[set[Index]] = [set(blocks) for blocks in movement.end(phase, tensor)]
    for hop in movement.phases[phase].operands[-1]:
        if hop.tensor == tensor:
            arrived[hop.target].add(hop.index)
    fix = f"end {phase} where {following} starts"
    if next_tensor == tensor:
        fix += ", or one hop away"
    for rank, needed in enumerate(movement.start(following, next_tensor)):
        for index in sorted(needed - arrived[rank]):
            held = " ".join(block_name(tensor, have) for have in sorted(arrived[rank]))
            yield (
                f"{following} starts on {sequence.place(rank)}: expected "
                f"{block_name(next_tensor, index)} here, got {held} from {phase}: {fix}"
            )


FAULTS: dict[str, Callable[[Movement], Iterator[str]]] = {
    "coverage": coverage_faults,
    "placement": placement_faults,
    "completion": completion_faults,
    "alignment": alignment_faults,
}
"""Property -> its faults on one mesh; a derived hop is posted at both ends, so none hangs."""
