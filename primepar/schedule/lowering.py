"""From (operator shape, sequence) to a program, double-buffered.

A sweep, which is a phase or backward and gradient together, posts what its first step needs of the
operands, and waits. Then every step

1. posts the operands of the next step, or at the last one those with which the next phase starts,
   and the partial sums that move on: all arrive in buffers separate from those in use;
2. multiplies, into a scratch where the sum is still in flight to here;
3. waits, adds the scratches to their sums, and frees the sums that have left;
4. frees the operands that are not `kept`;
5. sends the sums that it has finished to their homes. A home that has a part itself and receives
   one other takes it in a scratch; a reduce-scatter and a reduce need none.

After its last step the sweep frees what no later phase reads (`USED_UP`). So the products of step t
overlap the transfers for step t + 1, and two buffers per moving tensor are enough.

For example, forward of `P2x2` on device (0, 0): at t=0 it multiplies I[0,0], and I[0,1] arrives in
a second buffer. After the product I[0,0] is freed, since the next step needs I[0,1] and no more. So
two blocks of I are live during step 0 and one after it. SUMMA frees the copy of a panel in the same
way, but never the block that is at home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import floor
from typing import NamedTuple, TypedDict

from primepar.schedule.layout import Layout
from primepar.schedule.movement import (
    Holdings,
    Hop,
    Movement,
    Return,
    SweepStep,
    both,
    less,
    readers,
    sweep_of,
    sweeps,
)
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
    AllGather,
    Alloc,
    AllReduce,
    Broadcast,
    Compute,
    Elements,
    Free,
    Instruction,
    IRecv,
    ISend,
    Program,
    Reduce,
    ReduceScatter,
    Wait,
)
from primepar.schedule.sequence import FlatSlices, Sequence
from primepar.schedule.signature import Bound

# Which instructions carry a set of hops or returns: messages, or the collective that they make.
#
# A block that one rank sends to one other is a message. One that goes to several is a broadcast.
# Where the members of a group all send the same number of blocks to all others, that is an all-
# gather, unless one of them multiplies its block meanwhile. Partial sums of a group whose members
# are each home to the same number of them are a reduce-scatter.
#
# A set is processed once for all ranks. Every instruction comes with its rank, and the
# instructions of one rank come in the order of its list.

Post = ISend | IRecv | AllGather | Broadcast
RankInstructions = Iterator[tuple[int, Instruction]]
"""Instructions, each with its rank."""
_TAGS = {"I": 0, "W": 1, "O": 2, "dI": 3, "dW": 4, "dO": 5}


@dataclass(frozen=True)
class _Spread:
    """One block that its source sends to the rest of a group."""

    block: str
    source: int
    group: tuple[int, ...]
    is_read: bool
    """Whether its source multiplies it meanwhile: an all-gather writes to all of its blocks."""


def messages(hops: Iterable[Hop], label: str) -> Iterator[tuple[int, Post]]:
    """Posts with their ranks; all hops are processed in one order, so channels agree on it."""
    # Rank by rank the hops come in one order, and each makes both of its ends: so the n-th send
    # from 0 to 1 is the n-th receive of 1 from 0, whatever else the two do.
    for hop in hops:
        block, tag = block_name(hop.tensor, hop.index), _TAGS[hop.tensor]
        request = f"{label}>{hop.target} {block}"
        yield hop.source, ISend(hop.target, block, tag, request=request)
        request = f"{label}<{hop.source} {block}"
        yield hop.target, IRecv(hop.source, block, tag, request=request)


def split(hops: tuple[Hop, ...], is_read: Callable[[Hop], bool]) -> tuple[list[Hop], list[_Spread]]:
    """Hops that go to one rank alone, and blocks that go to several.

    `is_read` is asked whether the source of a hop multiplies the block while it is in flight.
    """
    targets: dict[tuple[str, int], list[Hop]] = {}
    for hop in hops:
        targets.setdefault((block_name(hop.tensor, hop.index), hop.source), []).append(hop)
    single = [same[0] for same in targets.values() if len(same) == 1]
    spread = [
        _Spread(block, source, tuple(sorted({source, *(hop.target for hop in same)})),
                is_read(same[0]))
        for (block, source), same in targets.items()
        if len(same) > 1
    ]  # fmt: skip
    return single, spread


class Spreading(NamedTuple):
    """An all-gather of a block of each member of a group, or with a source a broadcast of one."""

    group: tuple[int, ...]
    blocks: tuple[str, ...]
    source: int | None = None


def spreadings(spread: Iterable[_Spread]) -> Iterator[Spreading]:
    """All-gathers and broadcasts, in an order that all ranks agree on."""
    groups: dict[tuple[int, ...], dict[int, list[str]]] = {}
    busy = set()
    for way in spread:
        groups.setdefault(way.group, {}).setdefault(way.source, []).append(way.block)
        busy |= {way.group} if way.is_read else set()
    for group, by_source in groups.items():
        counts = {len(blocks) for blocks in by_source.values()}
        # Every member sends one block to all others: an all-gather. Where one member has two blocks
        # and another one, or a source still multiplies its block, each block is a broadcast of its
        # own.
        if set(by_source) == set(group) and len(counts) == 1 and group not in busy:
            for blocks in zip(*(by_source[member] for member in group), strict=True):
                yield Spreading(group, blocks)
        else:
            for source, blocks_of_source in by_source.items():
                yield from (Spreading(group, (block,), source) for block in blocks_of_source)


def collectives(spread: Iterable[_Spread], label: str) -> Iterator[tuple[int, Post]]:
    """Posted all-gathers and broadcasts with their ranks, in an order that all ranks agree on."""
    for group, blocks, source in spreadings(spread):
        request = f"{label}* {blocks[0]}"
        if source is None:
            for rank, block in zip(group, blocks, strict=True):
                yield rank, AllGather(group, block=block, blocks=blocks, request=request)
        else:
            call = Broadcast(group, block=blocks[0], root=source, request=request)
            yield from ((rank, call) for rank in group)


def finish_sums(returns: tuple[Return, ...], label: str) -> RankInstructions:
    """Finish the sums of a step: reduce-scatters first, then what is left block by block."""
    made, rest = scatters(returns)
    for group, blocks in made:
        for rank, kept in zip(group, blocks, strict=True):
            yield rank, ReduceScatter(group, blocks=blocks, block=kept)
            yield from ((rank, Free(block)) for block in blocks if block != kept)
    for total in rest:
        yield from _one_home(total, label)


def scatters(
    returns: tuple[Return, ...],
) -> tuple[list[tuple[tuple[int, ...], tuple[str, ...]]], list[Return]]:
    """Returns that make reduce-scatters, as (group, one block per member), and the others."""
    groups: dict[tuple[int, ...], dict[int, list[Return]]] = {}
    rest = []
    for total in returns:
        # Sums with one home among those that add to them: if each member is home to as many, they
        # are the parts of a reduce-scatter.
        if len(total.ranks) > 1 and len(total.homes) == 1 and total.homes[0] in total.ranks:
            groups.setdefault(total.ranks, {}).setdefault(total.homes[0], []).append(total)
        else:
            rest.append(total)
    made = []
    for group, by_home in groups.items():
        if set(by_home) == set(group) and len({len(totals) for totals in by_home.values()}) == 1:
            for line in zip(*(by_home[member] for member in group), strict=True):
                blocks = tuple(block_name(total.tensor, total.index) for total in line)
                made.append((group, blocks))
        else:
            rest += [total for totals in by_home.values() for total in totals]
    return made, rest


def _one_home(total: Return, label: str) -> RankInstructions:
    block, ranks, homes = block_name(total.tensor, total.index), total.ranks, total.homes
    # All that have a part keep the sum. Of one rank alone, nothing is to do.
    if ranks == homes:
        if len(ranks) > 1:
            yield from ((rank, AllReduce(ranks, block=block)) for rank in ranks)
        return
    for home, senders in total.parts:
        yield from _reduce_to(home, senders, total, label)
    if len(homes) > 1:
        yield from ((rank, AllReduce(homes, block=block)) for rank in homes)


def _reduce_to(home: int, senders: tuple[int, ...], total: Return, label: str) -> RankInstructions:
    block = block_name(total.tensor, total.index)
    others = [sender for sender in senders if sender != home]
    if len(others) == 1:
        yield from _one_message(home, others[0], home in senders, total, label)
    elif others:
        group = tuple(sorted({home, *senders}))
        if home not in senders:
            yield home, Alloc(block)
        yield from ((rank, Reduce(group, block=block, root=home)) for rank in group)
        yield from ((rank, Free(block)) for rank in others)
    elif not senders:
        yield home, Alloc(block)


def _one_message(
    home: int, sender: int, joins: bool, total: Return, label: str
) -> RankInstructions:
    block, tag = block_name(total.tensor, total.index), _TAGS[total.tensor]
    sent, received = f"{label}>{home} {block}", f"{label}<{sender} {block}"
    # The home has a part itself: the other one must not overwrite it.
    into = scratch_name(block) if joins else block
    yield sender, ISend(home, block, tag, request=sent)
    yield sender, Wait(sent)
    yield sender, Free(block)
    yield home, IRecv(sender, into, tag, request=received)
    yield home, Wait(received)
    if joins:
        yield home, Compute((into,), block)
        yield home, Free(into)


AWAITED: dict[Phase, dict[str, Phase]] = {
    "forward": {"I": "forward", "W": "forward"},
    "backward": {"I": "gradient", "W": "backward"},
    "gradient": {"I": "gradient", "W": "forward", "dO": "gradient"},
}
"""Before a phase: operand -> the phase that reads it next, where it is due; dO is where O ends."""
USED_UP: tuple[tuple[Phase, str], ...] = (
    ("backward", "W"), ("gradient", "I"), ("gradient", "dO"),
)  # fmt: skip
"""(phase, operand): what is left of it, copies and gradients, is freed after that phase."""


def lower(
    sequence: Sequence,
    operator: Linear | None = None,
    phases: tuple[Phase, ...] = PHASES,
    spends_weight: bool = False,
) -> Program:
    """Program of one linear operator over the mesh of `sequence`, for consecutive `phases`.

    With `spends_weight` nobody needs W after backward: it is freed, and goes nowhere.
    With an operator its shape is written into the program, and for a training step of a single
    primitive what its own formulas give as sent and held, where it has them. Raises `ShapeError` if
    the sequence's grid does not divide it. A map that leaves a block nowhere, or a tensor in the
    wrong place, still gives a program, and the program is refuted at that place.
    """
    movement = Movement(sequence, spends_weight)
    shape: dict[Dim, int] | None = None
    if operator is not None:
        operator.check_divides(sequence.grid)
        shape = {dim: operator.size(dim) for dim in sequence.grid}
    programs: list[list[Instruction]] = [[] for _ in range(sequence.ranks)]
    for sweep in sweeps(movement, phases):
        for rank, instruction in _sweep(movement, sweep):
            programs[rank].append(instruction)
    return Program(
        format="primepar-program",
        version=1,
        ranks=sequence.ranks,
        grid={phase: dict(sequence.grid) for phase in phases},
        shape=shape,
        initial=_named(_initial(movement, phases), sequence.ranks),
        programs=tuple(map(tuple, programs)),
        final=_named(_final(movement, phases), sequence.ranks),
        **({} if spends_weight else _amounts(sequence, operator, phases)),
    )


class _Amounts(TypedDict, total=False):
    memory: Bound
    traffic: tuple[Elements, ...]


def _amounts(sequence: Sequence, operator: Linear | None, phases: tuple[Phase, ...]) -> _Amounts:
    """What a training step should send and hold at most, where a single primitive has formulas."""
    amounts: _Amounts = {}
    if operator is None or phases != PHASES or len(sequence.elements) != 1:
        return amounts
    (element,) = sequence.elements
    sent, held = element.sent(operator), element.held(operator)
    if held is not None:
        amounts["memory"] = Bound(device=floor(held))
    if sent is not None:
        # Whole numbers as numbers, 5/3 as a text: JSON has no fractions.
        amount = sent.numerator if sent.denominator == 1 else str(sent)
        amounts["traffic"] = (amount,) * sequence.ranks
    return amounts


def _before(movement: Movement, phase: Phase) -> dict[str, Holdings]:
    """Tensors that the devices hold before `phase`, each where it is then due."""
    due = {
        tensor: movement.start(reader, tensor)
        for tensor, reader in AWAITED[phase].items()
        if not (movement.spends_weight and (phase, tensor) == ("gradient", "W"))
    }
    return due if "dO" in due else {**due, "dO": movement.end("forward", "O")}


def _initial(movement: Movement, phases: tuple[Phase, ...]) -> dict[str, Holdings]:
    due = _before(movement, phases[0])
    return due if phases != ("forward",) else {"I": due["I"], "W": due["W"]}


def _final(movement: Movement, phases: tuple[Phase, ...]) -> dict[str, Holdings]:
    following = PHASES[PHASES.index(phases[-1]) + 1 :]
    after = {} if movement.spends_weight else {"W": movement.start("forward", "W")}
    due = _before(movement, following[0]) if following else after
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


def _sweep(movement: Movement, phases: tuple[Phase, ...]) -> RankInstructions:
    label = "".join(phase[0].upper() for phase in phases)
    sweep = sweep_of(movement, phases)
    opening = _posts(sweep.opening, label, lambda _: False)
    yield from opening
    yield from _waits(opening)
    for number, step in enumerate(sweep.steps):
        yield from _step(movement, phases, number, step)
        for phase, returns in zip(phases, step.returns, strict=True):
            yield from finish_sums(returns, f"{phase[0].upper()}{number}")
    yield from _frees(used_up(movement, phases))


def _step(
    movement: Movement, phases: tuple[Phase, ...], step: int, moved: SweepStep
) -> RankInstructions:
    label = "".join(phase[0].upper() for phase in phases) + str(step)
    is_read = readers(movement, phases, step)
    # Posted before the products and awaited after them: this is where transfers and products
    # overlap.
    posts = [*_posts(moved.operands, label, is_read), *messages(moved.partials, label)]
    arriving: dict[int, set[str]] = {}
    for hop in moved.partials:
        arriving.setdefault(hop.target, set()).add(block_name(hop.tensor, hop.index))
    yield from posts
    for phase in phases:
        for rank, slices in enumerate(movement.slices(phase, step)):
            for compute in _products(phase, slices, arriving.get(rank, set())):
                yield rank, compute
    yield from _waits(posts)
    # Only now has the sum of the steps before arrived: what the scratch holds is added to it.
    for rank, blocks in arriving.items():
        for block in sorted(blocks):
            yield rank, Compute((scratch_name(block),), block)
            yield rank, Free(scratch_name(block))
    for hop in moved.partials:
        yield hop.source, Free(block_name(hop.tensor, hop.index))
    yield from _frees(_done_with(movement, phases, step))


def _posts(
    hops: tuple[Hop, ...], label: str, is_read: Callable[[Hop], bool]
) -> list[tuple[int, Post]]:
    single, spread = split(hops, is_read)
    return [*messages(single, label), *collectives(spread, label)]


def _waits(posts: list[tuple[int, Post]]) -> RankInstructions:
    return ((rank, Wait(post.request)) for rank, post in posts if post.request)


def _frees(holdings: Iterable[tuple[str, Holdings]]) -> RankInstructions:
    for tensor, held in holdings:
        for rank, blocks in enumerate(held):
            yield from ((rank, Free(block_name(tensor, index))) for index in sorted(blocks))


def _products(phase: Phase, slices: FlatSlices, arriving: set[str]) -> Iterator[Compute]:
    """The sub-operators of one step; a sum that is still in flight to here waits in a scratch."""
    dims = [dim for dim in DIMS if dim in slices]
    reads, writes = PRODUCTS[phase]
    for index in product(*(slices[dim] for dim in dims)):
        sub_operator: dict[Dim, int] = dict(zip(dims, index, strict=True))
        output = _block(writes, sub_operator)
        yield Compute(
            (_block(reads[0], sub_operator), _block(reads[1], sub_operator)),
            # O[0,0] hops here while this step computes its next product: that goes to O[0,0]'
            # meanwhile.
            scratch_name(output) if output in arriving else output,
            phase,
            sub_operator,
        )


def _block(tensor: str, sub_operator: dict[Dim, int]) -> str:
    dims = (dim for dim in tensor_dims(tensor) if dim in sub_operator)
    return block_name(tensor, tuple(sub_operator[dim] for dim in dims))


def _done_with(
    movement: Movement, phases: tuple[Phase, ...], step: int
) -> Iterator[tuple[str, Holdings]]:
    """Operand blocks that a rank needs neither at the next step nor in a later phase."""
    # The first phase of the sweep that reads an operand.
    reader = {tensor: phase for phase in reversed(phases) for tensor in PRODUCTS[phase].reads}
    operands = dict.fromkeys(tensor for phase in phases for tensor in PRODUCTS[phase].reads)
    for tensor in operands:
        held = movement.held(reader[tensor], tensor, step)
        yield tensor, less(held, kept(movement, reader[tensor], tensor, step))


def kept(movement: Movement, phase: Phase, tensor: str, step: int) -> Holdings:
    """Blocks of an operand that stay on every rank after a step."""
    rest, now = movement.resident(phase, tensor), movement.held(phase, tensor, step)
    if phase == "forward" and tensor in movement.sequence.keeps:
        return both(rest, now)
    if step + 1 < movement.sequence.steps:
        return both(rest, movement.held(phase, tensor, step + 1))
    following = movement.next_use(phase, tensor)
    if following is None or movement.sequence.has_homes:
        return rest
    # Without homes the tensor stays where it is, unless the last step sends it to the next phase.
    realigns = any(hop.tensor == tensor for hop in movement.moved(phase).operands[step])
    return movement.held(following, tensor, 0) if realigns else now


def used_up(movement: Movement, phases: tuple[Phase, ...]) -> Iterator[tuple[str, Holdings]]:
    """Blocks at home, or kept from forward, that no later phase reads."""
    if not movement.sequence.has_homes:
        return
    for phase, tensor in USED_UP:
        if phase in phases:
            left = movement.resident(phase, tensor)
            stays = tensor == "W" and not movement.spends_weight
            yield tensor, less(left, movement.home("W")) if stays else left
