"""What moves, derived from the map: never written by hand.

An operand block needed at step t + 1 is still here, or a peer held it at step t: it hops while
step t computes. Blocks kept for a later phase that starts elsewhere make one realigning hop during
the last step. An output block that leaves a device is a partial sum: it hops while the next step
computes. Output blocks that end on several devices are reduced over them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from primepar.schedule.operators import PRODUCTS, Index, Phase
from primepar.schedule.sequence import HOMES, Sequence

Holdings = list[frozenset[Index]]
"""The blocks of one tensor on every rank."""

NEXT_USE: dict[tuple[Phase, str], Phase] = {
    ("forward", "I"): "gradient",
    ("forward", "W"): "backward",
    ("backward", "dO"): "gradient",
    ("backward", "W"): "forward",
}
"""Where an operand goes after a phase; one that is not listed is done with."""


@dataclass(frozen=True)
class Hop:
    """One block on its way from one rank to another."""

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

    `prologue` brings what step 0 needs from its home. `operands[t]` hops during step t and is
    here for step t + 1, or for the next phase. `partials[t]` was summed before step t, hops
    during it, and is added to after it. `returns[t]` is finished by step t and goes home.
    """

    prologue: tuple[Hop, ...]
    operands: tuple[tuple[Hop, ...], ...]
    partials: tuple[tuple[Hop, ...], ...]
    returns: tuple[tuple[Return, ...], ...]

    @property
    def reductions(self) -> tuple[Return, ...]:
        """Sums that are spread over several ranks when they are finished."""
        return tuple(each for step in self.returns for each in step if len(each.ranks) > 1)


@dataclass(frozen=True)
class Movement:
    """The movement of a sequence over a training step."""

    sequence: Sequence

    def held(self, phase: Phase, tensor: str, step: int) -> Holdings:
        """Blocks of `tensor` that the map gives to every rank at `step` of `phase`."""
        return self._held[phase, tensor][step]

    @cached_property
    def _held(self) -> dict[tuple[Phase, str], list[Holdings]]:
        sequence = self.sequence
        return {
            (phase, tensor): [
                [
                    frozenset(sequence.blocks(phase, rank, step, tensor))
                    for rank in range(sequence.ranks)
                ]
                for step in range(sequence.steps)
            ]
            for phase, product in PRODUCTS.items()
            for tensor in (*product.reads, product.writes)
        }

    def home(self, tensor: str) -> Holdings:
        """Blocks of `tensor` that rest on every rank; none where the sequence declares no homes."""
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

    def resting(self, phase: Phase, tensor: str) -> Holdings:
        """Blocks that lie on every rank all through `phase`: at home, or kept from forward."""
        home = self.home(tensor)
        if phase == "forward" or tensor not in self.sequence.keeps:
            return home
        held = [self.held("forward", tensor, step) for step in range(self.sequence.steps)]
        return [blocks.union(*(at[rank] for at in held)) for rank, blocks in enumerate(home)]

    @cached_property
    def shares_output_gradient(self) -> bool:
        """Whether backward and gradient run as one sweep, as both want the same dO at every step.

        Only where tensors have homes and dO leaves its own: then it moves once for both.
        """
        backward, gradient = self._held["backward", "dO"], self._held["gradient", "dO"]
        home = self.home("dO")
        return (
            self.sequence.has_homes
            and backward == gradient
            and any(not want <= own for at in backward for want, own in zip(at, home, strict=True))
        )

    def start(self, phase: Phase, tensor: str) -> Holdings:
        """Where an operand must lie before `phase`: at rest, or where its first step wants it."""
        if self.sequence.has_homes:
            return self.resting(phase, tensor)
        return self.held(phase, tensor, 0)

    def end(self, phase: Phase, tensor: str) -> Holdings:
        """Where `tensor` lies after `phase`: at home; a sum, where its last product joined it."""
        if self.sequence.has_homes:
            return self.home(tensor)
        if tensor != PRODUCTS[phase].writes:
            return self.held(phase, tensor, self.sequence.steps - 1)
        left: list[set[Index]] = [set() for _ in range(self.sequence.ranks)]
        for finished in (each for step in self.phases[phase].returns for each in step):
            for rank in finished.homes:
                left[rank].add(finished.index)
        return [frozenset(blocks) for blocks in left]

    @cached_property
    def phases(self) -> dict[Phase, PhaseMovement]:
        """The movement of each phase."""
        return {phase: self._phase(phase) for phase in PRODUCTS}

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
        resting = self.resting(phase, tensor)
        return self._hops(tensor, resting, self.held(phase, tensor, 0), self.home(tensor))

    def _operand_hops(self, phase: Phase, tensor: str, t: int) -> list[Hop]:
        here = self.held(phase, tensor, t)
        if t + 1 < self.sequence.steps:
            resting = self.resting(phase, tensor)
            here = [held | kept for held, kept in zip(here, resting, strict=True)]
            return self._hops(tensor, here, self.held(phase, tensor, t + 1), self.home(tensor))
        following = NEXT_USE.get((phase, tensor))
        if following is None or self.sequence.has_homes:
            return []
        needed = self.start(following, tensor)
        hops = self._hops(tensor, here, needed)
        return hops if self._is_one_hop(hops, here, needed) else []

    @staticmethod
    def _is_one_hop(hops: list[Hop], here: Holdings, needed: Holdings) -> bool:
        """One sender per receiver, one receiver per sender, and nothing left wanting."""
        wanted = sum(len(want - have) for want, have in zip(needed, here, strict=True))
        pairs = {(hop.source, hop.target) for hop in hops}
        sources, targets = {source for source, _ in pairs}, {target for _, target in pairs}
        return len(hops) == wanted and len(sources) == len(targets) == len(pairs)

    def _hops(
        self, tensor: str, here: Holdings, needed: Holdings, home: Holdings | None = None
    ) -> list[Hop]:
        """A hop for every missing block that somebody holds: a peer that works on it, else home."""
        home = home or [frozenset()] * len(here)
        working = [have - own for have, own in zip(here, home, strict=True)]
        hops = []
        for target, (want, have) in enumerate(zip(needed, here, strict=True)):
            for index in sorted(want - have):
                holders = _holders(index, working) or _holders(index, home)
                if holders:
                    source = min(holders, key=self._distance_to(target))
                    hops.append(Hop(tensor, index, source, target))
        return hops

    def _sums(
        self, phase: Phase, tensor: str
    ) -> tuple[tuple[tuple[Hop, ...], ...], tuple[tuple[Return, ...], ...]]:
        """Follow the partial sums of an output: how they travel, and where they are finished."""
        steps, home = self.sequence.steps, self.home(tensor)
        last = {
            index: t
            for t in range(steps)
            for blocks in self.held(phase, tensor, t)
            for index in blocks
        }
        at: dict[Index, set[int]] = {}
        partials, returns = [], []
        for t in range(steps):
            now = self.held(phase, tensor, t)
            partials.append(self._partial_hops(tensor, at, now, home))
            for hop in partials[-1]:
                at[hop.index].discard(hop.source)
            for rank, blocks in enumerate(now):
                for index in blocks:
                    at.setdefault(index, set()).add(rank)
            finished = sorted(index for index in at if last[index] == t)
            returns.append(tuple(self._return(tensor, index, at.pop(index)) for index in finished))
        return tuple(partials), tuple(returns)

    def _return(self, tensor: str, index: Index, ranks: set[int]) -> Return:
        homes = _holders(index, self.home(tensor)) if self.sequence.has_homes else sorted(ranks)
        parts: dict[int, list[int]] = {home: [] for home in homes}
        for rank in sorted(ranks):
            if homes:
                parts[min(homes, key=self._distance_to(rank))].append(rank)
        return Return(tensor, index, tuple((home, tuple(taken)) for home, taken in parts.items()))

    def _partial_hops(
        self, tensor: str, at: dict[Index, set[int]], now: Holdings, home: Holdings
    ) -> tuple[Hop, ...]:
        """Partial sums that move on before a step; one that lies at its home stays there."""
        hops: list[Hop] = []
        for target, blocks in enumerate(now):
            for index in sorted(blocks):
                ranks = at.get(index, set())
                leaving = {
                    rank for rank in ranks if index not in now[rank] and index not in home[rank]
                } - {hop.source for hop in hops if hop.index == index}
                if target not in ranks and leaving:
                    source = min(leaving, key=self._distance_to(target))
                    hops.append(Hop(tensor, index, source, target))
        return tuple(hops)

    def _distance_to(self, target: int) -> Callable[[int], tuple[int, int, tuple[int, ...]]]:
        """Order on ranks: fewest axes crossed, then the shortest way round, then one direction."""
        lengths, coordinates = self.sequence.axis_lengths, self.sequence.coordinates

        def distance(source: int) -> tuple[int, int, tuple[int, ...]]:
            pairs = zip(coordinates[source], coordinates[target], lengths, strict=True)
            offset = tuple((there - here) % length for there, here, length in pairs)
            around = zip(offset, lengths, strict=True)
            shortest = sum(min(step, length - step) for step, length in around)
            return sum(step != 0 for step in offset), shortest, offset

        return distance


def _holders(index: Index, holdings: Holdings) -> list[int]:
    return [rank for rank, blocks in enumerate(holdings) if index in blocks]
