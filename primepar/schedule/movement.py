"""What moves, derived from the map: never written by hand.

An operand block needed at step t + 1 is still here, or a peer held it at step t: it hops while
step t computes. Blocks kept for a later phase that starts elsewhere make one realigning hop during
the last step. An output block that leaves a device is a partial sum: it hops while the next step
computes. Output blocks that end on several devices are reduced over them.

For example, device (0, 0) of `P2x2` needs I[0,0] at step 0 of forward and I[0,1] at step 1. It does
not hold I[0,1] at step 0, and device (0, 1) does: so I[0,1] hops from there while step 0 computes.
Its output block is O[0,0] at both steps, so O does not move. In the column method (`K=d`) every
device ends backward with its term of the whole dI: the sum is spread over all, an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from typing import NamedTuple

from primepar.schedule.operators import HOMES, PRODUCTS, Index, Phase, tensor_dims
from primepar.schedule.sequence import Coordinates, FlatSlices, Sequence

# Which ranks hold which blocks of a tensor, and which of the ranks is nearest to another.

Holdings = list[frozenset[Index]]
"""The blocks of one tensor on every rank."""
Holders = dict[Index, set[int]]
"""The ranks of every block."""


def both(one: Holdings, other: Holdings) -> Holdings:
    """Blocks that a rank has in either."""
    return [blocks | more for blocks, more in zip(one, other, strict=True)]


def less(one: Holdings, other: Holdings) -> Holdings:
    """Blocks that a rank has in the first alone."""
    return [blocks - fewer for blocks, fewer in zip(one, other, strict=True)]


def holders(holdings: Holdings) -> Holders:
    """The same by blocks."""
    ranks_of: Holders = {}
    for rank, blocks in enumerate(holdings):
        for index in blocks:
            ranks_of.setdefault(index, set()).add(rank)
    return ranks_of


@dataclass(frozen=True)
class MeshDistance:
    """Which devices of a sequence's mesh are near to one another."""

    sequence: Sequence

    def nearest(self, target: int, ranks: set[int]) -> int:
        """The rank that is fewest axes away, then the shortest way round, then in one direction.

        The search goes outwards from the target. Where all ranks are far, it would visit most of
        the mesh; so after four places for each rank, the distances of all ranks are compared.
        """
        if len(ranks) == 1:
            return next(iter(ranks))
        here = self.sequence.coordinates[target]
        # Offsets by distance are the same for every device, so they are sorted once: the first one
        # with a rank of the set is the nearest.
        for rank in islice(self._outwards(here), 4 * len(ranks)):
            if rank in ranks:
                return rank
        return min(ranks, key=lambda rank: self._distance(self._offset(rank, target)))

    def _offset(self, source: int, target: int) -> Coordinates:
        coordinates, lengths = self.sequence.coordinates, self.sequence.axis_lengths
        ends = zip(coordinates[source], coordinates[target], lengths, strict=True)
        return tuple((there - here) % length for there, here, length in ends)

    def _distance(self, offset: Coordinates) -> tuple[int, int, Coordinates]:
        around = zip(offset, self.sequence.axis_lengths, strict=True)
        shortest = sum(min(step, length - step) for step, length in around)
        return sum(step != 0 for step in offset), shortest, offset

    def _outwards(self, here: Coordinates) -> Iterator[int]:
        lengths = self.sequence.axis_lengths
        for offset in self._offsets:
            steps = zip(here, offset, lengths, strict=True)
            yield self._rank_at[tuple((start + step) % length for start, step, length in steps)]

    @cached_property
    def _offsets(self) -> list[Coordinates]:
        return sorted(product(*map(range, self.sequence.axis_lengths)), key=self._distance)

    @cached_property
    def _rank_at(self) -> dict[Coordinates, int]:
        return {device: rank for rank, device in enumerate(self.sequence.coordinates)}


NEXT_USE: dict[tuple[Phase, str], Phase] = {
    ("forward", "I"): "gradient",
    ("forward", "W"): "backward",
    ("backward", "dO"): "gradient",
    ("backward", "W"): "forward",
}
"""Where an operand goes after a phase; one that is not listed is not needed any more."""


@dataclass(frozen=True)
class Hop:
    """One block that moves from one rank to another: a P2P send."""

    tensor: str
    index: Index
    source: int
    target: int


@dataclass(frozen=True)
class Return:
    """One output block, finished: partial sums become the sum that every home holds.

    `parts` gives each home the ranks whose partial sums it takes, itself included where it has
    one; where there are several homes, their sums are reduced over them.
    """

    tensor: str
    index: Index
    parts: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def homes(self) -> tuple[int, ...]:
        """Ranks that hold the sum in the end."""
        return tuple(home for home, _ in self.parts)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that hold a partial sum."""
        return tuple(sorted(rank for _, ranks in self.parts for rank in ranks))


@dataclass(frozen=True)
class PhaseMovement:
    """Everything that moves in one phase, per step.

    `prologue` sends what step 0 needs from its home. `operands[t]` hops during step t and is
    here for step t + 1, or for the next phase. `partials[t]` was summed before step t, hops
    during it, and is added to after it. `returns[t]` is finished by step t and sent to its home.
    """

    prologue: tuple[Hop, ...]
    operands: tuple[tuple[Hop, ...], ...]
    partials: tuple[tuple[Hop, ...], ...]
    returns: tuple[tuple[Return, ...], ...]

    @property
    def reductions(self) -> tuple[Return, ...]:
        """Sums that are spread over several ranks when they are finished."""
        return tuple(total for totals in self.returns for total in totals if len(total.ranks) > 1)


@dataclass(frozen=True)
class Movement:
    """The movement of a sequence over a training step.

    With `spends_weight` nothing reads W after backward, and the next step gets a new one, made from
    something else: then W makes no hop to where forward starts.
    """

    sequence: Sequence
    spends_weight: bool = False
    _moved: dict[Phase, PhaseMovement] = field(default_factory=dict, repr=False, compare=False)

    def slices(self, phase: Phase, step: int) -> list[FlatSlices]:
        """Dim -> slices, for every rank at `step` of `phase`."""
        return self._maps[phase].slices[step]

    def held(self, phase: Phase, tensor: str, step: int) -> Holdings:
        """Blocks of `tensor` that the map gives to every rank at `step` of `phase`."""
        return self._maps[phase].held[tensor][step]

    @cached_property
    def _mesh(self) -> MeshDistance:
        return MeshDistance(self.sequence)

    @cached_property
    def _maps(self) -> dict[Phase, _PhaseMap]:
        return {phase: _PhaseMap(self.sequence, phase) for phase in PRODUCTS}

    def home(self, tensor: str) -> Holdings:
        """Resident blocks of `tensor` on every rank; none where the sequence declares no homes."""
        return self._homes[tensor.removeprefix("d")]

    @cached_property
    def _homes(self) -> dict[str, Holdings]:
        sequence = self.sequence
        return {
            tensor: [
                frozenset(sequence.home(tensor, rank) if sequence.has_homes else ())
                for rank in range(sequence.ranks)
            ]
            for tensor in HOMES
        }

    @cached_property
    def _at_home(self) -> dict[str, Holders]:
        return {tensor: holders(home) for tensor, home in self._homes.items()}

    def resident(self, phase: Phase, tensor: str) -> Holdings:
        """Blocks that every rank holds all through `phase`: at home, or kept from forward."""
        kept = phase != "forward" and tensor in self._kept
        return self._kept[tensor] if kept else self.home(tensor)

    @cached_property
    def _kept(self) -> dict[str, Holdings]:
        """Tensor -> what every rank holds once forward has kept all that it received."""
        held = self._maps["forward"].held
        return {
            tensor: [
                blocks.union(*copies)
                for blocks, *copies in zip(self.home(tensor), *held[tensor], strict=True)
            ]
            for tensor in self.sequence.keeps & set(held)
        }

    @cached_property
    def shares_output_gradient(self) -> bool:
        """Whether backward and gradient run as one sweep, as both need the same dO at every step.

        Only where tensors have homes and dO leaves its own: then it moves once for both.
        """
        if not self.sequence.has_homes:
            return False
        backward, gradient = (self._maps[phase].held["dO"] for phase in ("backward", "gradient"))
        home = self.home("dO")
        return backward == gradient and any(
            not needed <= resident
            for step in backward
            for needed, resident in zip(step, home, strict=True)
        )

    def next_use(self, phase: Phase, tensor: str) -> Phase | None:
        """The phase that reads an operand of `phase` next; None if none does."""
        spent = self.spends_weight and (phase, tensor) == ("backward", "W")
        return None if spent else NEXT_USE.get((phase, tensor))

    def start(self, phase: Phase, tensor: str) -> Holdings:
        """Where an operand must be before `phase`: resident, or where its first step needs it."""
        if self.sequence.has_homes:
            return self.resident(phase, tensor)
        return self.held(phase, tensor, 0)

    def end(self, phase: Phase, tensor: str) -> Holdings:
        """Where `tensor` is after `phase`: at home; a sum, where its last product joined it."""
        if self.sequence.has_homes:
            return self.home(tensor)
        if tensor != PRODUCTS[phase].writes:
            return self.held(phase, tensor, self.sequence.steps - 1)
        left: list[set[Index]] = [set() for _ in range(self.sequence.ranks)]
        for finished in (total for totals in self.moved(phase).returns for total in totals):
            for rank in finished.homes:
                left[rank].add(finished.index)
        return [frozenset(blocks) for blocks in left]

    @cached_property
    def phases(self) -> dict[Phase, PhaseMovement]:
        """The movement of each phase."""
        return {phase: self.moved(phase) for phase in PRODUCTS}

    def moved(self, phase: Phase) -> PhaseMovement:
        """The movement of one phase."""
        if phase not in self._moved:
            self._moved[phase] = self._phase(phase)
        return self._moved[phase]

    def _phase(self, phase: Phase) -> PhaseMovement:
        product = PRODUCTS[phase]
        steps = range(self.sequence.steps)
        prologue = tuple(hop for tensor in product.reads for hop in self._prologue(phase, tensor))
        operands = tuple(
            tuple(hop for tensor in product.reads for hop in self._operand_hops(phase, tensor, t))
            for t in steps
        )
        partials, returns = self._sums(phase, product.writes)
        return PhaseMovement(prologue, operands, partials, returns)

    def _prologue(self, phase: Phase, tensor: str) -> list[Hop]:
        if not self.sequence.has_homes:
            return []
        return self._hops(tensor, self.resident(phase, tensor), self.held(phase, tensor, 0))

    def _operand_hops(self, phase: Phase, tensor: str, t: int) -> list[Hop]:
        here = self.held(phase, tensor, t)
        # Within the phase: what the next step needs and is neither in use now nor resident.
        if t + 1 < self.sequence.steps:
            here = both(here, self.resident(phase, tensor))
            return self._hops(tensor, here, self.held(phase, tensor, t + 1))
        following = self.next_use(phase, tensor)
        if following is None or self.sequence.has_homes:
            return []
        needed = self.start(following, tensor)
        # To where the next phase starts, all or nothing: if a block is nowhere, none moves, and the
        # proof refutes the map at the first read.
        hops = self._hops(tensor, here, needed)
        missing = sum(map(len, less(needed, here)))
        return hops if len(hops) == missing else []

    def _hops(self, tensor: str, here: Holdings, needed: Holdings) -> list[Hop]:
        """A hop for every missing block that some device holds: one that works on it, else home."""
        missing = less(needed, here)
        if not any(missing):
            return []
        # From a device that works with the block if there is one, so that not all ask its home.
        working = holders(less(here, self.home(tensor)))
        at_home = self._at_home[tensor.removeprefix("d")]
        hops = []
        for target, blocks in enumerate(missing):
            for index in sorted(blocks):
                sources = working.get(index) or at_home.get(index)
                if sources:
                    hops.append(Hop(tensor, index, self._mesh.nearest(target, sources), target))
        return hops

    def _sums(
        self, phase: Phase, tensor: str
    ) -> tuple[tuple[tuple[Hop, ...], ...], tuple[tuple[Return, ...], ...]]:
        """Follow the partial sums of an output: how they travel, and where they are finished."""
        steps, home = self.sequence.steps, self.home(tensor)
        # The step after which a sum gets no more terms: there it is finished.
        last = {
            index: t
            for t in range(steps)
            for blocks in self.held(phase, tensor, t)
            for index in blocks
        }
        ranks_of: dict[Index, set[int]] = {}
        partials, returns = [], []
        for t in range(steps):
            now = self.held(phase, tensor, t)
            partials.append(self._partial_hops(tensor, ranks_of, now, home))
            # Only the source that hops loses its part; parts of others stay where they are.
            for hop in partials[-1]:
                ranks_of[hop.index].discard(hop.source)
            for rank, blocks in enumerate(now):
                for index in blocks:
                    ranks_of.setdefault(index, set()).add(rank)
            finished = sorted(index for index in ranks_of if last[index] == t)
            returns.append(
                tuple(self._return(tensor, index, ranks_of.pop(index)) for index in finished)
            )
        return tuple(partials), tuple(returns)

    def _return(self, tensor: str, index: Index, ranks: set[int]) -> Return:
        at_home = self._at_home[tensor.removeprefix("d")]
        homes = at_home.get(index, set()) if self.sequence.has_homes else ranks
        parts: dict[int, list[int]] = {home: [] for home in sorted(homes)}
        for rank in sorted(ranks) if homes else ():
            # With several homes each takes the parts nearest to it, and then the homes all-reduce.
            parts[self._mesh.nearest(rank, homes)].append(rank)
        return Return(tensor, index, tuple((home, tuple(taken)) for home, taken in parts.items()))

    def _partial_hops(
        self, tensor: str, ranks_of: dict[Index, set[int]], now: Holdings, home: Holdings
    ) -> tuple[Hop, ...]:
        """Partial sums that move on before a step; one that is at its home stays there."""
        leaving = {
            index: {r for r in ranks if index not in now[r] and index not in home[r]}
            for index, ranks in ranks_of.items()
        }
        hops: list[Hop] = []
        for target, blocks in enumerate(now):
            for index in sorted(blocks):
                # A device that joins the sum takes over from one that leaves it; if none leaves, it
                # starts a part of its own, and the parts are reduced at the end.
                if leaving.get(index) and target not in ranks_of[index]:
                    source = self._mesh.nearest(target, leaving[index])
                    leaving[index].discard(source)
                    hops.append(Hop(tensor, index, source, target))
        return tuple(hops)


@dataclass(frozen=True)
class _PhaseMap:
    """What the map of one phase gives to every rank at every step."""

    sequence: Sequence
    phase: Phase

    @cached_property
    def slices(self) -> list[list[FlatSlices]]:
        ranks, steps = range(self.sequence.ranks), range(self.sequence.steps)
        return [[self.sequence.slices(self.phase, rank, step) for rank in ranks] for step in steps]

    @cached_property
    def held(self) -> dict[str, list[Holdings]]:
        """Tensor -> its blocks, for every step."""
        reads, writes = PRODUCTS[self.phase]
        return {tensor: self._blocks(tensor) for tensor in (*reads, writes)}

    def _blocks(self, tensor: str) -> list[Holdings]:
        """Blocks of a tensor, for every step; equal slices share one set."""
        dims = [dim for dim in tensor_dims(tensor) if dim in self.sequence.grid]
        known: dict[tuple[tuple[int, ...], ...], frozenset[Index]] = {}
        held: list[Holdings] = []
        for step in self.slices:
            held.append([])
            for slices in step:
                key = (*map(slices.__getitem__, dims),)
                if key not in known:
                    known[key] = frozenset(product(*key))
                held[-1].append(known[key])
        return held


# The steps of a sweep: what moves in each, for every reader of a movement.
#
# A sweep runs some phases step by step together. A hop that several of them need is made once. The
# program of a sequence, its cost and what it sends are read from these steps.


class SweepStep(NamedTuple):
    """What moves in one step; hops are made while its products run."""

    operands: tuple[Hop, ...]
    """For the next step, or for a later phase."""
    partials: tuple[Hop, ...]
    """Sums of the steps before, which are added to after the step."""
    returns: tuple[tuple[Return, ...], ...]
    """Of each phase the sums that the step finishes."""


class Sweep(NamedTuple):
    """Phases that run together: the hops before their first step, and their steps."""

    phases: tuple[Phase, ...]
    opening: tuple[Hop, ...]
    steps: tuple[SweepStep, ...]


def sweep_of(movement: Movement, phases: tuple[Phase, ...]) -> Sweep:
    """The sweep of some phases."""
    moved = [movement.moved(phase) for phase in phases]
    steps = (
        SweepStep(
            _once(phase.operands[step] for phase in moved),
            _once(phase.partials[step] for phase in moved),
            tuple(phase.returns[step] for phase in moved),
        )
        for step in range(movement.sequence.steps)
    )
    return Sweep(phases, _once(phase.prologue for phase in moved), tuple(steps))


def sweeps(movement: Movement, phases: tuple[Phase, ...]) -> list[tuple[Phase, ...]]:
    """Phases in order; backward and gradient together where they share the hops of dO."""
    if {"backward", "gradient"} <= set(phases) and movement.shares_output_gradient:
        return [*((phase,) for phase in phases[:-2]), phases[-2:]]
    return [(phase,) for phase in phases]


def readers(movement: Movement, phases: tuple[Phase, ...], step: int) -> Callable[[Hop], bool]:
    """Whether the source of a hop multiplies its block in a step."""

    def is_read(hop: Hop) -> bool:
        reading = (phase for phase in phases if hop.tensor in PRODUCTS[phase].reads)
        held = (movement.held(phase, hop.tensor, step)[hop.source] for phase in reading)
        return any(hop.index in blocks for blocks in held)

    return is_read


def _once(hops: Iterable[tuple[Hop, ...]]) -> tuple[Hop, ...]:
    """Hops of several phases in order, those that they share once."""
    return tuple(dict.fromkeys(hop for some in hops for hop in some))
