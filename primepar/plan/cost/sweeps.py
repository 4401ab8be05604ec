"""What one primitive does on its devices, read off its movement once, for every model and mesh.

Amounts are shares of a tensor, of the busiest port: a device, or where a level of links is shared a
group of devices of the level below. A primitive that only cuts, in one step, and sums at most over
all of its devices is a *cut*; any other one moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from primepar.schedule.holdings import Holdings, both
from primepar.schedule.lowering import sweeps
from primepar.schedule.movement import Hop, Movement, PhaseMovement, Return
from primepar.schedule.operators import DIMS, HOMES, PRODUCTS, Phase, tensor_dims
from primepar.schedule.sequence import Element, Sequence

Shares = tuple[tuple[str, float], ...]
"""Tensor -> share of it."""


class Load(NamedTuple):
    """What the ports of one level of links receive at once: the mix of tensors of each port."""

    level: int
    ports: tuple[Shares, ...]


class SweepStep(NamedTuple):
    """One step of a sweep: products and what hops meanwhile, then the sums that go home.

    `work` has the share of the operator's multiplications and the blocks that they touch, phase by
    phase. A stage without work is what a sweep begins with.
    """

    work: tuple[tuple[float, Shares], ...]
    hops: tuple[Load, ...]
    returns: tuple[Load, ...]


@dataclass(frozen=True, eq=False)
class Moving:
    """The movement of one element over its own 2^k devices, or of none over one."""

    sequence: Sequence

    @cached_property
    def movement(self) -> Movement:
        """Its movement as a sequence of its own."""
        return Movement(self.sequence)

    @cached_property
    def devices(self) -> int:
        """Number of devices."""
        return self.sequence.ranks

    @cached_property
    def is_cut(self) -> bool:
        """Whether nothing of it moves but sums over all its devices, each in place."""
        everyone = tuple(range(self.devices))
        moved = [self.movement.moved(phase) for phase in PRODUCTS]
        in_place = all((each.homes, each.ranks) == (everyone, everyone)
                       for phase in moved for each in phase.reductions)  # fmt: skip
        return in_place and self.sequence.steps == 1 and not any(map(_hops, moved))

    @cached_property
    def behaviour(self) -> tuple[object, ...]:
        """What it does and where its tensors rest: the same for primitives that do the same."""
        sequence, movement = self.sequence, self.movement
        steps = range(self.sequence.steps)
        held = [movement.held(phase, tensor, step) for phase, product in PRODUCTS.items()
                for tensor in (*product.reads, product.writes) for step in steps]  # fmt: skip
        rests = [sequence.home(tensor, rank) for tensor in HOMES for rank in range(self.devices)]
        grid = tuple(sequence.grid.items())
        homes = not self.is_cut and (sequence.has_homes, sequence.keeps)
        return grid, tuple(map(tuple, held)), tuple(rests), homes

    @cached_property
    def summed(self) -> frozenset[Phase]:
        """Phases whose output a cut sums over its devices."""
        return frozenset(each for each in PRODUCTS if self.movement.moved(each).reductions)

    def share(self, phase: Phase, tensor: str, *, last: bool = False) -> float:
        """The largest share of a tensor on a device at the start or (`last`) end of a phase."""
        return _share(self, phase, tensor, last)

    def most(self, tensor: str, held: Holdings) -> float:
        """The largest share of a tensor on a device that holds so much."""
        grid = self.sequence.grid
        return max(map(len, held)) / prod(grid[d] for d in tensor_dims(tensor) if d in grid)

    @cached_property
    def phases(self) -> tuple[tuple[Phase, ...], ...]:
        """Sweeps: phases that run step by step together."""
        return tuple(sweeps(self.movement, tuple(PRODUCTS)))

    def stages(self, phases: tuple[Phase, ...], levels: tuple[int, ...], shared: tuple[bool, ...]
               ) -> tuple[SweepStep, ...]:  # fmt: skip
        """Steps of a sweep, with loads on links: each bit's level, and which levels are shared."""
        return _stages(self, phases, levels, shared)

    @cached_property
    def alive(self) -> tuple[Shares, ...]:
        """Shares of tensors that are on a device at each step of each phase, with what arrives."""
        return tuple(shares for phase in PRODUCTS for shares in self._alive(phase))

    def _alive(self, phase: Phase) -> Iterator[Shares]:
        movement, (reads, writes) = self.movement, PRODUCTS[phase]
        made = self.most(writes, movement.end(phase, writes))
        for step in range(self.sequence.steps):
            arriving = movement.moved(phase).operands[step]
            found = [(each, self.most(each, self._with(phase, each, step, arriving)))
                     for each in reads]  # fmt: skip
            now = self.most(writes, movement.held(phase, writes, step))
            coming = self._largest(movement.moved(phase).partials[step])
            yield (*found, (writes, max(made, now) + coming))

    @cached_property
    def working(self) -> tuple[Shares, ...]:
        """Shares of tensors that are on a device at each step of each phase, but none in flight."""
        movement, found = self.movement, []
        for phase, (reads, writes) in PRODUCTS.items():
            made = movement.end(phase, writes)
            for step in range(self.sequence.steps):
                held = [(each, self._with(phase, each, step, ())) for each in reads]
                held += [(writes, made), (writes, movement.held(phase, writes, step))]
                shares: dict[str, float] = {}
                for tensor, blocks in held:
                    share = self.block(tensor) * max(map(len, blocks))
                    shares[tensor] = max(share, shares.get(tensor, 0.0))
                found.append(tuple(shares.items()))
        return tuple(found)

    def _with(self, phase: Phase, tensor: str, step: int, arriving: Iterable[Hop]) -> Holdings:
        movement = self.movement
        here = both(movement.held(phase, tensor, step), movement.resident(phase, tensor))
        more: list[set[tuple[int, ...]]] = [set() for _ in here]
        for hop in arriving:
            if hop.tensor == tensor:
                more[hop.target].add(hop.index)
        return both(here, [frozenset(blocks) for blocks in more])

    def _largest(self, hops: tuple[Hop, ...]) -> float:
        found = [0.0] * self.devices
        for hop in hops:
            found[hop.target] += self.block(hop.tensor)
        return max(found)

    def block(self, tensor: str) -> float:
        """The share that one block is."""
        grid = self.sequence.grid
        return 1 / prod(grid[dim] for dim in tensor_dims(tensor) if dim in grid)


@lru_cache(maxsize=1024)
def moving(*elements: Element) -> Moving:
    """The movement of an element, or of none, derived once."""
    return Moving(Sequence(elements))


def _hops(moved: PhaseMovement) -> bool:
    return bool(moved.prologue) or any(moved.operands) or any(moved.partials)


@lru_cache(maxsize=4096)
def _share(own: Moving, phase: Phase, tensor: str, last: bool) -> float:
    movement = own.movement
    held = movement.end(phase, tensor) if last else movement.start(phase, tensor)
    return own.most(tensor, held)


@lru_cache(maxsize=4096)
def _stages(
    own: Moving, phases: tuple[Phase, ...], levels: tuple[int, ...], shared: tuple[bool, ...]
) -> tuple[SweepStep, ...]:
    moved = [own.movement.moved(phase) for phase in phases]
    ports = _Ports(own, levels, shared)
    opening = dict.fromkeys(hop for phase in moved for hop in phase.prologue)
    stages = [SweepStep((), ports.hops(opening), ())]
    for step in range(own.sequence.steps):
        hops = dict.fromkeys(hop for phase in moved
                             for hop in (*phase.operands[step], *phase.partials[step]))  # fmt: skip
        returns = [each for phase in moved for each in phase.returns[step]]
        work = tuple(_work(own, phase, step) for phase in phases)
        stages.append(SweepStep(work, ports.hops(hops), ports.returns(returns)))
    return tuple(stages)


def _work(own: Moving, phase: Phase, step: int) -> tuple[float, Shares]:
    """The largest share of the multiplications of a device, and the blocks of its products."""
    grid = own.sequence.grid
    named = [dim for dim in DIMS if dim in grid]
    every = prod(grid[dim] for dim in named)
    slices = own.movement.slices(phase, step)
    share = max(prod(len(each[dim]) for dim in named) for each in slices) / every
    reads, writes = PRODUCTS[phase]
    return share, tuple(
        (each, max(map(len, own.movement.held(phase, each, step))) * own.block(each))
        for each in (*reads, writes)
    )


@dataclass(frozen=True)
class _Ports:
    """Loads of hops and returns, port by port."""

    own: Moving
    levels: tuple[int, ...]
    shared: tuple[bool, ...]

    def _level(self, one: int, other: int) -> int:
        """Level of the links between two devices."""
        bits = len(self.levels)
        apart = (place for place in range(bits) if (one ^ other) >> (bits - 1 - place) & 1)
        return max(self.levels[place] for place in apart)

    def _port(self, level: int, rank: int) -> int:
        """The device, or its group of the level below where the level is shared."""
        inside = sum(each < level for each in self.levels) if self.shared[level] else 0
        return rank >> inside

    def hops(self, hops: Iterable[Hop]) -> tuple[Load, ...]:
        """A block that comes to several devices behind one port comes through it once."""
        found = {
            (level, self._port(level, hop.target), hop.tensor, hop.index)
            for hop in hops
            for level in [self._level(hop.source, hop.target)]
        }
        return _loads((level, port, tensor, self.own.block(tensor))
                      for level, port, tensor, _ in found)  # fmt: skip

    def returns(self, returns: Iterable[Return]) -> tuple[Load, ...]:
        """Sums as rings: a reduction sends each block once per device, an all-reduce twice."""
        return _loads(amount for each in returns for amount in self._return(each))

    def _return(self, each: Return) -> Iterator[tuple[int, int, str, float]]:
        block, homes = self.own.block(each.tensor), each.homes
        everywhere = each.ranks == homes
        for home, senders in () if everywhere else each.parts:
            others = [rank for rank in senders if rank != home]
            yield from self._through(each.tensor, (home, *others), block, home)
        if len(homes) > 1:
            yield from self._through(each.tensor, homes, 2 * (len(homes) - 1) / len(homes) * block)

    def _through(
        self, tensor: str, group: tuple[int, ...], amount: float, home: int | None = None
    ) -> Iterator[tuple[int, int, str, float]]:
        """What every port of a group but the home's gets of a ring."""
        if len(group) < 2:
            return
        level = max(self._level(group[0], rank) for rank in group[1:])
        ports = {self._port(level, rank) for rank in group if rank != home}
        yield from ((level, port, tensor, amount) for port in ports)


def _loads(amounts: Iterable[tuple[int, int, str, float]]) -> tuple[Load, ...]:
    ports: dict[tuple[int, int], dict[str, float]] = {}
    for level, port, tensor, share in amounts:
        mix = ports.setdefault((level, port), {})
        mix[tensor] = mix.get(tensor, 0.0) + share
    levels: dict[int, set[Shares]] = {}
    for (level, _), mix in ports.items():
        levels.setdefault(level, set()).add(tuple(sorted(mix.items())))
    return tuple(Load(level, tuple(sorted(mixes))) for level, mixes in sorted(levels.items()))
