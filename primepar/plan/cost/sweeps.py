"""What one primitive computes, holds and sends, derived from its movement once for all models.

Amounts are shares of a tensor at the busiest port: that of a device, or, where a level of links is
shared, of a group of devices of the level below. A primitive of one step that only shards tensors
and all-reduces over all of its devices is a *cut*. All others have transfers of their own.

Hops and sums become collectives by the rules of the program: `schedule.transfers` states which hops
are an all-gather, and which sums a reduce-scatter. Between two devices a program sends messages
instead, and a group whose devices differ in other ways than in some bits alone has no ring here:
for both, hops and sums stay what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from primepar.plan.cluster import Collective
from primepar.schedule.lowering import scatters, split, spreadings
from primepar.schedule.movement import (
    Holdings,
    Hop,
    Movement,
    PhaseMovement,
    Return,
    both,
    readers,
    sweep_of,
    sweeps,
)
from primepar.schedule.operators import DIMS, HOMES, PRODUCTS, Phase, block_name, tensor_dims
from primepar.schedule.sequence import Element, Sequence

Group = tuple[int, ...]


class RingCall(NamedTuple):
    """A collective over all groups of devices that differ in some bits, the outermost first.

    `share` is the share of the tensor that a device gives to it, or keeps of a reduce-scatter.
    """

    name: Collective
    tensor: str
    bits: tuple[int, ...]
    share: float


class _Calls:
    """Calls, those of one kind over the same devices together, as a program merges them."""

    def __init__(self, sequence: Sequence, share: Callable[[str], float]) -> None:
        self.places, self._share = sequence.ranks.bit_length() - 1, share
        self._shares: dict[tuple[Collective, str, Group], dict[Group, float]] = {}

    def add(self, name: Collective, tensor: str, group: Group) -> bool:
        """Add a call of one block of every member; False where it is none."""
        apart = 0
        for rank in group:
            apart |= rank ^ group[0]
        if len(group) < 3 or len(group) != 1 << apart.bit_count():
            return False
        places = tuple(place for place in range(self.places)
                       if apart >> (self.places - 1 - place) & 1)  # fmt: skip
        by_group = self._shares.setdefault((name, tensor, places), {})
        by_group[group] = by_group.get(group, 0.0) + self._share(tensor)
        return True

    @property
    def made(self) -> tuple[RingCall, ...]:
        """All of them; groups that differ in the same bits call at the same time."""
        return tuple(RingCall(*key, max(shares.values())) for key, shares in self._shares.items())


def gathered(
    sequence: Sequence,
    share: Callable[[str], float],
    hops: tuple[Hop, ...],
    is_read: Callable[[Hop], bool],
) -> tuple[tuple[RingCall, ...], list[Hop]]:
    """All-gathers among hops, and the hops that are none; `share` is that of a tensor's block."""
    calls, taken = _Calls(sequence, share), set[tuple[str, int]]()
    _, spread = split(hops, is_read)
    for group, blocks, source in spreadings(spread):
        tensor = blocks[0].partition("[")[0]
        if source is None and calls.add("all_gather", tensor, group):
            taken.update(zip(blocks, group, strict=True))
    rest = [hop for hop in hops if (block_name(hop.tensor, hop.index), hop.source) not in taken]
    return calls.made, rest


def summed(
    sequence: Sequence, share: Callable[[str], float], returns: Iterable[tuple[Return, ...]]
) -> tuple[tuple[RingCall, ...], list[Return]]:
    """Reduce-scatters and all-reduces among the sums of each phase, and those that are none."""
    calls, rest = _Calls(sequence, share), list[Return]()
    for of_phase in returns:
        scattered = set[str]()
        for group, blocks in scatters(of_phase)[0]:
            if calls.add("reduce_scatter", blocks[0].partition("[")[0], group):
                scattered.update(blocks)
        for total in of_phase:
            everywhere = total.ranks == total.homes
            if everywhere and calls.add("all_reduce", total.tensor, total.homes):
                continue
            if block_name(total.tensor, total.index) not in scattered:
                rest.append(total)
    return calls.made, rest


def sent(call: RingCall, size: float) -> tuple[float, int]:
    """Bytes that a device sends of a tensor of `size` bytes, and steps of the ring."""
    others = (1 << len(call.bits)) - 1
    if call.name == "all_reduce":
        return 2 * others / (others + 1) * call.share * size, 2 * others
    return others * call.share * size, others


Shares = tuple[tuple[str, float], ...]
"""Tensor -> share of it."""


class Load(NamedTuple):
    """What the ports of one level of links receive at once: the mix of tensors of each port.

    `messages` is the largest number of messages of a port. `by_port` has the number of every port,
    what it receives, and in how many messages. `pieces` has the largest message of every tensor.
    """

    level: int
    ports: tuple[Shares, ...]
    messages: int
    by_port: tuple[tuple[int, Shares, int], ...]
    pieces: Shares


class SweepStage(NamedTuple):
    """One step of a sweep: products together with P2P hops, then sums that return to their homes.

    `work` has, for each phase, the share of the operator's multiplications and of the blocks that
    they touch. The first step has no work: it is the prologue. `gathers` are at the same time as
    hops, `sums` as returns.
    """

    work: tuple[tuple[float, Shares], ...]
    hops: tuple[Load, ...]
    returns: tuple[Load, ...]
    gathers: tuple[RingCall, ...]
    sums: tuple[RingCall, ...]


@dataclass(frozen=True, eq=False)
class Moving:
    """The movement of one element on its own 2^k devices, or of no element on one device."""

    sequence: Sequence

    @cached_property
    def movement(self) -> Movement:
        """The movement of the element alone."""
        return Movement(self.sequence)

    @cached_property
    def devices(self) -> int:
        """Number of devices."""
        return self.sequence.ranks

    @cached_property
    def is_cut(self) -> bool:
        """Whether its only communication is all-reduces over all of its devices, in place."""
        everyone = tuple(range(self.devices))
        moved = [self.movement.moved(phase) for phase in PRODUCTS]
        in_place = all((reduction.homes, reduction.ranks) == (everyone, everyone)
                       for phase in moved for reduction in phase.reductions)  # fmt: skip
        return in_place and self.sequence.steps == 1 and not any(map(_hops, moved))

    @cached_property
    def behaviour(self) -> tuple[object, ...]:
        """A key of its blocks and resident layouts: equal for primitives that do the same."""
        sequence, movement = self.sequence, self.movement
        steps = range(self.sequence.steps)
        held = [movement.held(phase, tensor, step) for phase, product in PRODUCTS.items()
                for tensor in (*product.reads, product.writes) for step in steps]  # fmt: skip
        homes_of_ranks = [
            sequence.home(tensor, rank) for tensor in HOMES for rank in range(self.devices)
        ]
        grid = tuple(sequence.grid.items())
        homes = not self.is_cut and (sequence.has_homes, sequence.keeps)
        return grid, tuple(map(tuple, held)), tuple(homes_of_ranks), homes

    @cached_property
    def summed(self) -> frozenset[Phase]:
        """Phases whose output a cut all-reduces over its devices."""
        return frozenset(phase for phase in PRODUCTS if self.movement.moved(phase).reductions)

    def share(self, phase: Phase, tensor: str, *, last: bool = False) -> float:
        """The largest share of a tensor on a device at the start or (`last`) end of a phase."""
        return _share(self, phase, tensor, last)

    @cached_property
    def keeps_input(self) -> bool:
        """Whether the gradient of W begins with the blocks of I with which forward began."""
        return self.movement.start("gradient", "I") == self.movement.start("forward", "I")

    def most(self, tensor: str, held: Holdings) -> float:
        """The share of a tensor on the device that holds most of its blocks in `held`."""
        grid = self.sequence.grid
        return max(map(len, held)) / prod(grid[d] for d in tensor_dims(tensor) if d in grid)

    @cached_property
    def phases(self) -> tuple[tuple[Phase, ...], ...]:
        """Sweeps: phases that run step by step together."""
        return tuple(sweeps(self.movement, tuple(PRODUCTS)))

    def stages(self, phases: tuple[Phase, ...], levels: tuple[int, ...], shared: tuple[bool, ...]
               ) -> tuple[SweepStage, ...]:  # fmt: skip
        """Steps of a sweep with link loads, for the level of each bit and whether it is shared."""
        return _stages(self, phases, levels, shared)

    @cached_property
    def live(self) -> tuple[Shares, ...]:
        """Live shares of tensors at each step of each phase, with blocks that arrive."""
        return tuple(shares for phase in PRODUCTS for shares in self._live(phase))

    def _live(self, phase: Phase) -> Iterator[Shares]:
        movement, (reads, writes) = self.movement, PRODUCTS[phase]
        largest = self.most(writes, movement.end(phase, writes))
        for step in range(self.sequence.steps):
            arriving = movement.moved(phase).operands[step]
            operands = [(tensor, self.most(tensor, self._with(phase, tensor, step, arriving)))
                     for tensor in reads]  # fmt: skip
            now = self.most(writes, movement.held(phase, writes, step))
            moved = movement.moved(phase)
            incoming = max(self._largest(moved.partials[step]), self._scratch(moved.returns[step]))
            yield (*operands, (writes, max(largest, now) + incoming))

    @cached_property
    def working(self) -> tuple[Shares, ...]:
        """Live shares of tensors at each step of each phase, without blocks in flight."""
        movement, steps = self.movement, []
        for phase, (reads, writes) in PRODUCTS.items():
            result = movement.end(phase, writes)
            for step in range(self.sequence.steps):
                held = [(tensor, self._with(phase, tensor, step, ())) for tensor in reads]
                held += [(writes, result), (writes, movement.held(phase, writes, step))]
                shares: dict[str, float] = {}
                for tensor, blocks in held:
                    share = self.block(tensor) * max(map(len, blocks))
                    shares[tensor] = max(share, shares.get(tensor, 0.0))
                steps.append(tuple(shares.items()))
        return tuple(steps)

    def _with(self, phase: Phase, tensor: str, step: int, arriving: Iterable[Hop]) -> Holdings:
        movement = self.movement
        local = both(movement.held(phase, tensor, step), movement.resident(phase, tensor))
        received: list[set[tuple[int, ...]]] = [set() for _ in local]
        for hop in arriving:
            if hop.tensor == tensor:
                received[hop.target].add(hop.index)
        return both(local, [frozenset(blocks) for blocks in received])

    def _largest(self, hops: tuple[Hop, ...]) -> float:
        received = [0.0] * self.devices
        for hop in hops:
            received[hop.target] += self.block(hop.tensor)
        return max(received)

    def _scratch(self, returns: tuple[Return, ...]) -> float:
        """The share that arrives where a home adds one partial sum to its own."""
        received = [0.0] * self.devices
        for sum_ in returns:
            for home, senders in sum_.parts:
                if home in senders and len(senders) == 2:
                    received[home] += self.block(sum_.tensor)
        return max(received)

    def block(self, tensor: str) -> float:
        """The share of one block in its tensor."""
        known = self._blocks.get(tensor)
        if known is None:
            grid = self.sequence.grid
            known = 1 / prod(grid[dim] for dim in tensor_dims(tensor) if dim in grid)
            self._blocks[tensor] = known
        return known

    @cached_property
    def _blocks(self) -> dict[str, float]:
        return {}


@lru_cache(maxsize=1024)
def moving(*elements: Element) -> Moving:
    """The movement of an element, or of none, cached."""
    return Moving(Sequence(elements))


def _hops(moved: PhaseMovement) -> bool:
    return bool(moved.prologue) or any(moved.operands) or any(moved.partials)


@lru_cache(maxsize=4096)
def _share(moving: Moving, phase: Phase, tensor: str, last: bool) -> float:
    movement = moving.movement
    held = movement.end(phase, tensor) if last else movement.start(phase, tensor)
    return moving.most(tensor, held)


@lru_cache(maxsize=4096)
def _stages(
    moving: Moving, phases: tuple[Phase, ...], levels: tuple[int, ...], shared: tuple[bool, ...]
) -> tuple[SweepStage, ...]:
    sweep, ports = sweep_of(moving.movement, phases), _Ports(moving, levels, shared)
    sequence, block = moving.sequence, moving.block
    gathers, hops = gathered(sequence, block, sweep.opening, lambda _: False)
    stages = [SweepStage((), ports.hops(hops), (), gathers, ())]
    for number, step in enumerate(sweep.steps):
        work = tuple(_work(moving, phase, number) for phase in phases)
        is_read = readers(moving.movement, phases, number)
        gathers, hops = gathered(sequence, block, step.operands, is_read)
        sums, returns = summed(sequence, block, step.returns)
        loads = ports.hops((*hops, *step.partials)), ports.returns(returns)
        stages.append(SweepStage(work, *loads, gathers, sums))
    return tuple(stages)


def _work(moving: Moving, phase: Phase, step: int) -> tuple[float, Shares]:
    """The largest share of the multiplications on a device, and the shares that they touch."""
    grid = moving.sequence.grid
    named = [dim for dim in DIMS if dim in grid]
    blocks = prod(grid[dim] for dim in named)
    slices = moving.movement.slices(phase, step)
    share = max(prod(len(tensor[dim]) for dim in named) for tensor in slices) / blocks
    reads, writes = PRODUCTS[phase]
    return share, tuple(
        (tensor, max(map(len, moving.movement.held(phase, tensor, step))) * moving.block(tensor))
        for tensor in (*reads, writes)
    )


Amount = tuple[int, int, str, float, int]
"""Level, port, tensor, share of the tensor, and number of messages."""


@dataclass(frozen=True)
class _Ports:
    """Loads of hops and returns, by port."""

    moving: Moving
    levels: tuple[int, ...]
    shared: tuple[bool, ...]

    def _level(self, rank: int, other: int) -> int:
        """Level of the links between two devices."""
        return self._level_of[rank ^ other]

    @cached_property
    def _level_of(self) -> list[int]:
        """Level of the links between devices, by the exclusive or of their numbers."""
        levels = [0]
        for level in reversed(self.levels):
            levels += [max(level, inner) for inner in levels]
        return levels

    def _port(self, level: int, rank: int) -> int:
        """The device, or its group of the level below where the level is shared."""
        return rank >> self._inside[level]

    @cached_property
    def _inside(self) -> list[int]:
        """Number of device bits within a port of each level."""
        return [sum(bit_level < level for bit_level in self.levels) if shared else 0
                for level, shared in enumerate(self.shared)]  # fmt: skip

    def hops(self, hops: Iterable[Hop]) -> tuple[Load, ...]:
        """Loads of hops: a block for several devices behind one port passes that port once."""
        level_of, inside = self._level_of, self._inside
        received = {
            (level, hop.target >> inside[level], hop.tensor, hop.index)
            for hop in hops
            for level in [level_of[hop.source ^ hop.target]]
        }
        blocks = Counter((level, port, tensor) for level, port, tensor, _ in received)
        return _loads((*place, number * self.moving.block(place[2]), number)
                      for place, number in blocks.items())  # fmt: skip

    def returns(self, returns: Iterable[Return]) -> tuple[Load, ...]:
        """Loads of sums as rings: a reduce sends a block once per device, an all-reduce twice."""
        return _loads(amount for sum_ in returns for amount in self._return(sum_))

    def _return(self, sum_: Return) -> Iterator[Amount]:
        block, homes = self.moving.block(sum_.tensor), sum_.homes
        everywhere = sum_.ranks == homes
        for home, senders in () if everywhere else sum_.parts:
            others = [rank for rank in senders if rank != home]
            yield from self._through(sum_.tensor, (home, *others), block, home)
        if len(homes) > 1:
            yield from self._through(sum_.tensor, homes, 2 * (len(homes) - 1) / len(homes) * block)

    def _through(
        self, tensor: str, group: tuple[int, ...], amount: float, home: int | None = None
    ) -> Iterator[Amount]:
        """What a ring sends through every port of a group but that of the home."""
        if len(group) < 2:
            return
        level = max(self._level(group[0], rank) for rank in group[1:])
        ports = {self._port(level, rank) for rank in group if rank != home}
        yield from ((level, port, tensor, amount, 1) for port in ports)


def _loads(amounts: Iterable[Amount]) -> tuple[Load, ...]:
    ports: dict[tuple[int, int], dict[str, float]] = {}
    messages: Counter[tuple[int, int]] = Counter()
    pieces: dict[int, dict[str, float]] = {}
    for level, port, tensor, share, number in amounts:
        mix = ports.setdefault((level, port), {})
        mix[tensor] = mix.get(tensor, 0.0) + share
        messages[level, port] += number
        largest = pieces.setdefault(level, {})
        largest[tensor] = max(share / number, largest.get(tensor, 0.0))
    levels: dict[int, list[tuple[int, Shares, int]]] = {}
    for (level, port), mix in ports.items():
        received = port, tuple(sorted(mix.items())), messages[level, port]
        levels.setdefault(level, []).append(received)
    return tuple(_load(level, by_port, tuple(pieces[level].items()))
                 for level, by_port in sorted(levels.items()))  # fmt: skip


def _load(level: int, by_port: list[tuple[int, Shares, int]], pieces: Shares) -> Load:
    mixes = sorted({mix for _, mix, _ in by_port})
    return Load(level, tuple(mixes), max(count for *_, count in by_port), tuple(by_port),
                pieces)  # fmt: skip
