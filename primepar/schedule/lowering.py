"""From (operator shape, sequence) to a program, double-buffered.

Each step posts the transfers of the next one, multiplies, waits, and frees what it needs no more:
the products of step t overlap the transfers for step t + 1, and two buffers per moving tensor do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from primepar.schedule.layout import Layout
from primepar.schedule.movement import NEXT_USE, Holdings, Hop, Movement, PhaseMovement
from primepar.schedule.operators import (
    DIMS,
    PHASES,
    PRODUCTS,
    Dim,
    Linear,
    Phase,
    block_name,
    scratch_name,
    tensor_dims,
)
from primepar.schedule.program import (
    AllReduce,
    Compute,
    Free,
    Instruction,
    IRecv,
    ISend,
    Program,
    Wait,
)
from primepar.schedule.sequence import Sequence

_TAGS = {"I": 0, "W": 1, "O": 2, "dI": 3, "dW": 4, "dO": 5}


def lower(
    sequence: Sequence, operator: Linear | None = None, phases: tuple[Phase, ...] = PHASES
) -> Program:
    """Program of one linear operator over the mesh of `sequence`, for consecutive `phases`.

    With an operator its shape is written into the program. Raises `ShapeError` if the sequence's
    grid does not divide it. A map that leaves a block nowhere, or a tensor in the wrong place,
    still gives a program, and the program is refuted at that place.
    """
    movement = Movement(sequence)
    shape: dict[Dim, int] | None = None
    if operator is not None:
        operator.check_divides(sequence.grid)
        shape = {dim: operator.size(dim) for dim in sequence.grid}
    instructions = [
        tuple(node for phase in phases for node in _phase(movement, phase, rank))
        for rank in range(sequence.ranks)
    ]
    return Program(
        format="primepar-program",
        version=1,
        ranks=sequence.ranks,
        grid={phase: dict(sequence.grid) for phase in phases},
        shape=shape,
        initial=_named(_initial(movement, phases), sequence.ranks),
        programs=tuple(instructions),
        final=_named(_final(movement, phases), sequence.ranks),
    )


def boundary(movement: Movement, phase: Phase, *, before: bool) -> dict[str, Holdings]:
    """Tensors that lie on the devices before or after `phase`, each where it is then due."""
    if before:
        return {
            "forward": {
                "I": movement.start("forward", "I"),
                "W": movement.start("forward", "W"),
                "dO": movement.end("forward", "O"),
            },
            "backward": {
                "I": movement.start("gradient", "I"),
                "W": movement.start("backward", "W"),
                "dO": movement.end("forward", "O"),
            },
            "gradient": {
                "I": movement.start("gradient", "I"),
                "W": movement.start("forward", "W"),
                "dO": movement.start("gradient", "dO"),
            },
        }[phase]
    following = PHASES[PHASES.index(phase) + 1 :]
    if following:
        return boundary(movement, following[0], before=True)
    return {"W": movement.start("forward", "W")}


def _initial(movement: Movement, phases: tuple[Phase, ...]) -> dict[str, Holdings]:
    due = boundary(movement, phases[0], before=True)
    return due if phases != ("forward",) else {"I": due["I"], "W": due["W"]}


def _final(movement: Movement, phases: tuple[Phase, ...]) -> dict[str, Holdings]:
    due = boundary(movement, phases[-1], before=False)
    due = {tensor: held for tensor, held in due.items() if tensor != "dO" or "backward" in phases}
    for phase in phases:
        output = PRODUCTS[phase].writes
        due[output] = movement.end(phase, output)
    if "dW" in due:
        due["dW"] = movement.start("forward", "W")
    return due


def _named(tensors: dict[str, Holdings], ranks: int) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(
            block_name(tensor, index)
            for tensor, held in tensors.items()
            for index in sorted(held[rank])
        )
        for rank in range(ranks)
    )


def layout(movement: Movement, phase: Phase, tensor: str, *, last: bool) -> Layout:
    """Layout of an operand at the start, or (`last`) of the output at the end of a phase."""
    sequence = movement.sequence
    held = movement.end(phase, tensor) if last else movement.start(phase, tensor)
    grid = [sequence.grid[dim] for dim in tensor_dims(tensor) if dim in sequence.grid]
    return Layout.of(grid, held)


def _phase(movement: Movement, phase: Phase, rank: int) -> Iterator[Instruction]:
    moved = movement.phases[phase]
    for step in range(movement.sequence.steps):
        yield from _step(movement, moved, phase, rank, step)
    for reduction in moved.reductions:
        if rank in reduction.ranks:
            yield AllReduce(reduction.ranks, block=block_name(reduction.tensor, reduction.index))


def _step(
    movement: Movement, moved: PhaseMovement, phase: Phase, rank: int, step: int
) -> Iterator[Instruction]:
    hops = (*moved.operands[step], *moved.partials[step])
    posts = list(_posts(hops, rank, f"{phase[0].upper()}{step}"))
    arriving = {
        block_name(hop.tensor, hop.index) for hop in moved.partials[step] if hop.target == rank
    }
    leaving = [
        block_name(hop.tensor, hop.index) for hop in moved.partials[step] if hop.source == rank
    ]
    yield from posts
    yield from _products(movement.sequence, phase, rank, step, arriving)
    yield from (Wait(post.request) for post in posts)
    for block in sorted(arriving):
        yield Compute((scratch_name(block),), block)
        yield Free(scratch_name(block))
    yield from map(Free, leaving)
    yield from map(Free, _done_with(movement, moved, phase, rank, step))


def _posts(hops: Iterable[Hop], rank: int, label: str) -> Iterator[ISend | IRecv]:
    """Every rank walks the hops in one order, so that both ends of a channel agree on it."""
    for hop in hops:
        block, tag = block_name(hop.tensor, hop.index), _TAGS[hop.tensor]
        if hop.source == rank:
            yield ISend(hop.target, block, tag, request=f"{label}>{hop.target} {block}")
        elif hop.target == rank:
            yield IRecv(hop.source, block, tag, request=f"{label}<{hop.source} {block}")


def _products(
    sequence: Sequence, phase: Phase, rank: int, step: int, arriving: set[str]
) -> Iterator[Compute]:
    """The sub-operators of one step; a sum that is still on its way here waits in a scratch."""
    slices = sequence.slices(phase, rank, step)
    dims = [dim for dim in DIMS if dim in slices]
    reads, writes = PRODUCTS[phase]
    for index in product(*(slices[dim] for dim in dims)):
        sub_operator: dict[Dim, int] = dict(zip(dims, index, strict=True))
        output = _block(writes, sub_operator)
        yield Compute(
            (_block(reads[0], sub_operator), _block(reads[1], sub_operator)),
            scratch_name(output) if output in arriving else output,
            phase,
            sub_operator,
        )


def _block(tensor: str, sub_operator: dict[Dim, int]) -> str:
    dims = (dim for dim in tensor_dims(tensor) if dim in sub_operator)
    return block_name(tensor, tuple(sub_operator[dim] for dim in dims))


def _done_with(
    movement: Movement, moved: PhaseMovement, phase: Phase, rank: int, step: int
) -> Iterator[str]:
    """Operand blocks that this rank needs neither at the next step nor in a later phase."""
    last = step + 1 == movement.sequence.steps
    for tensor in PRODUCTS[phase].reads:
        following = NEXT_USE.get((phase, tensor))
        if not last:
            kept = movement.held(phase, tensor, step + 1)[rank]
        elif following is None:
            kept = frozenset()
        elif any(hop.tensor == tensor for hop in moved.operands[step]):
            kept = movement.start(following, tensor)[rank]
        else:
            continue
        for index in sorted(movement.held(phase, tensor, step)[rank] - kept):
            yield block_name(tensor, index)
