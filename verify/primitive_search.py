"""The smallest mesh on which a primitive is wrong, by looking at every device, step and block.

Independent of Z3: it reads the concrete maps and the movement that is derived from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from time import perf_counter

from primepar.schedule.movement import NEXT_USE, Movement
from primepar.schedule.operators import DIMS, PHASES, PRODUCTS, Index, Phase, block_name
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence

Sides = tuple[int, ...]
LONGEST_SIDE = 6
MOST_DEVICES, MOST_DEVICES_AFTER = 64, 16
MOST_SUB_OPERATORS = 4096


@dataclass(frozen=True)
class Fault:
    """What is wrong at the smallest sides, in one sentence."""

    sides: Sides
    sentence: str
    seconds: float


def side_choices(primitive: Primitive, hints: Iterable[Sides] = ()) -> list[Sides]:
    """Sides worth a look, fewest devices first: all short ones, and `hints` if not too long."""
    names = primitive.side_names
    axes = primitive.axis_sides.values()

    def devices(sides: Sides) -> int:
        length = dict(zip(names, sides, strict=True))
        return prod(length[side] for side in axes)

    short = product(range(1, LONGEST_SIDE + 1), repeat=len(names))
    choices = {sides for sides in (*short, *hints) if devices(sides) <= MOST_DEVICES}
    return sorted(choices, key=lambda sides: (devices(sides), sides))


def smallest_faults(
    primitive: Primitive, properties: Iterable[str], hints: Iterable[Sides], deadline: float
) -> dict[str, Fault]:
    """Property -> its fault at the smallest sides that have one, as far as the time goes.

    After the first fault, faults of other properties are looked for on small meshes only.
    """
    open_names = [name for name in FAULTS if name in set(properties)]
    found: dict[str, Fault] = {}
    for sides in side_choices(primitive, hints):
        sequence = Sequence.of(primitive, *sides)
        if found and sequence.ranks > MOST_DEVICES_AFTER:
            break
        movement = Movement(sequence)
        large = prod(sequence.grid.values()) > MOST_SUB_OPERATORS
        for name in open_names:
            if name in found or perf_counter() > deadline or (large and name != "coverage"):
                continue
            clock = perf_counter()
            fault = next(FAULTS[name](movement), None)
            if fault is not None:
                sentence = f"{_mesh(sequence)}: {fault}"
                found[name] = Fault(sides, sentence, perf_counter() - clock)
    return found


def _mesh(sequence: Sequence) -> str:
    """How sentences name a mesh, `s=2 (2x2 devices)`."""
    (element,) = sequence.elements
    named = zip(element.primitive.side_names, element.sides, strict=True)
    sides = ", ".join(f"{name}={side}" for name, side in named) or "any side"
    mesh = "x".join(map(str, element.axis_lengths)) or "1"
    return f"{sides} ({mesh} device{'s' * (sequence.ranks > 1)})"


def coverage_faults(movement: Movement) -> Iterator[str]:
    """Sub-operators that are computed twice, then those that are never computed."""
    sequence = movement.sequence
    dims = [dim for dim in DIMS if dim in sequence.grid]
    for phase in PHASES:
        places: dict[Index, tuple[int, int]] = {}
        for rank, step in product(range(sequence.ranks), range(sequence.steps)):
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
    inside = ", ".join(f"{dim}={at}" for dim, at in zip(dims, index, strict=True))
    return f"{phase} sub-operator ({inside})"


def _at(sequence: Sequence, rank: int, step: int) -> str:
    return f"{sequence.place(rank)} at t={step}"


def placement_faults(movement: Movement) -> Iterator[str]:
    """Operand blocks that a device needs at a step and that no device held at the step before."""
    sequence = movement.sequence
    for phase in PHASES:
        for step, tensor in product(range(1, sequence.steps), PRODUCTS[phase].reads):
            before = movement.held(phase, tensor, step - 1)
            somewhere = frozenset[Index]().union(*before)
            for rank, needed in enumerate(movement.held(phase, tensor, step)):
                for index in sorted(needed - somewhere):
                    block, last = block_name(tensor, index), f"t={step - 1}"
                    yield (
                        f"{phase}, {_at(sequence, rank, step)}: expected {block} to be on some "
                        f"device at {last}, got it on none: let a device use it at {last}"
                    )


def completion_faults(movement: Movement) -> Iterator[str]:
    """Products that are not once in the sum that they belong to."""
    sequence = movement.sequence
    for phase in PHASES:
        output = PRODUCTS[phase].writes
        made, sums = _summed(movement, phase)
        ends: dict[Index, list[int]] = {}
        for rank, blocks in enumerate(movement.end(phase, output)):
            for index in blocks:
                ends.setdefault(index, []).append(rank)
        for index, products in sorted(made.items()):
            owners = ends[index]
            joined = [place for rank in owners for place in sums[rank].get(index, ())]
            for place in products:
                if joined.count(place) != 1:
                    yield (
                        f"{phase}, {_at(sequence, *place)}: expected its product for "
                        f"{block_name(output, index)} in the sum on {sequence.place(owners[0])} "
                        "at the end, got it overwritten by another that came: "
                        f"keep {output} where it is, or pass it on at every step"
                    )


def _summed(
    movement: Movement, phase: Phase
) -> tuple[dict[Index, list[tuple[int, int]]], list[dict[Index, list[tuple[int, int]]]]]:
    """Per block the (rank, step) of its products; per rank and block those in its partial sum."""
    sequence, output = movement.sequence, PRODUCTS[phase].writes
    made: dict[Index, list[tuple[int, int]]] = {}
    sums: list[dict[Index, list[tuple[int, int]]]] = [{} for _ in range(sequence.ranks)]
    for step in range(sequence.steps):
        hops = movement.phases[phase].partials[step]
        sent = [sums[hop.source].pop(hop.index, []) for hop in hops]
        for hop, partial in zip(hops, sent, strict=True):
            sums[hop.target][hop.index] = partial
        for rank, blocks in enumerate(movement.held(phase, output, step)):
            for index in blocks:
                made.setdefault(index, []).append((rank, step))
                sums[rank].setdefault(index, []).append((rank, step))
    return made, sums


def alignment_faults(movement: Movement) -> Iterator[str]:
    """Tensors that do not lie where the next phase starts with them."""
    for (phase, tensor), following in NEXT_USE.items():
        yield from _misaligned(movement, phase, tensor, following, tensor)
    yield from _misaligned(movement, "forward", "O", "backward", "dO")
    yield from _misaligned(movement, "gradient", "dW", "forward", "W")


def _misaligned(
    movement: Movement, phase: Phase, tensor: str, following: Phase, next_tensor: str
) -> Iterator[str]:
    sequence = movement.sequence
    arrived: list[set[Index]] = [set(blocks) for blocks in movement.end(phase, tensor)]
    for hop in movement.phases[phase].operands[-1]:
        if hop.tensor == tensor:
            arrived[hop.target].add(hop.index)
    mend = f"end {phase} where {following} starts"
    if next_tensor == tensor:
        mend += ", or one hop away"
    for rank, needed in enumerate(movement.start(following, next_tensor)):
        for index in sorted(needed - arrived[rank]):
            held = " ".join(block_name(tensor, have) for have in sorted(arrived[rank]))
            yield (
                f"{following} starts on {sequence.place(rank)}: expected "
                f"{block_name(next_tensor, index)} here, got {held} from {phase}: {mend}"
            )


FAULTS: dict[str, Callable[[Movement], Iterator[str]]] = {
    "coverage": coverage_faults,
    "placement": placement_faults,
    "completion": completion_faults,
    "alignment": alignment_faults,
}
"""Property -> what breaks it on one mesh; a derived hop is posted at both ends, so none hangs."""
