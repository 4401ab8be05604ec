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
from primepar.schedule.sequence import Sequence

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
class Reduction:
    """One output block whose sum is spread over several ranks."""

    tensor: str
    index: Index
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class PhaseMovement:
    """Everything that moves in one phase, per step.

    `operands[t]` hops during step t and is here for step t + 1, or for the next phase.
    `partials[t]` was summed before step t, hops during it, and is added to after it.
    """

    operands: tuple[tuple[Hop, ...], ...]
    partials: tuple[tuple[Hop, ...], ...]
    reductions: tuple[Reduction, ...]


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

    def start(self, phase: Phase, tensor: str) -> Holdings:
        """Where `tensor` must lie before `phase`."""
        return self.held(phase, tensor, 0)

    def end(self, phase: Phase, tensor: str) -> Holdings:
        """Where `tensor` lies after the last step; a sum, where its last product joined it."""
        if tensor != PRODUCTS[phase].writes:
            return self.held(phase, tensor, self.sequence.steps - 1)
        left: list[set[Index]] = [set() for _ in range(self.sequence.ranks)]
        for step in range(self.sequence.steps):
            for hop in self._partial_hops(phase, tensor, step):
                left[hop.source].discard(hop.index)
            for rank, blocks in enumerate(self.held(phase, tensor, step)):
                left[rank] |= blocks
        return [frozenset(blocks) for blocks in left]

    @cached_property
    def phases(self) -> dict[Phase, PhaseMovement]:
        """The movement of each phase."""
        return {phase: self._phase(phase) for phase in PRODUCTS}

    def _phase(self, phase: Phase) -> PhaseMovement:
        product = PRODUCTS[phase]
        steps = range(self.sequence.steps)
        operands = tuple(
            tuple(hop for tensor in product.reads for hop in self._operand_hops(phase, tensor, t))
            for t in steps
        )
        partials = tuple(self._partial_hops(phase, product.writes, t) for t in steps)
        return PhaseMovement(operands, partials, self._reductions(phase))

    def _operand_hops(self, phase: Phase, tensor: str, t: int) -> list[Hop]:
        here = self.held(phase, tensor, t)
        if t + 1 < self.sequence.steps:
            return self._hops(tensor, here, self.held(phase, tensor, t + 1))
        following = NEXT_USE.get((phase, tensor))
        if following is None:
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

    def _hops(self, tensor: str, here: Holdings, needed: Holdings) -> list[Hop]:
        """A hop for every missing block that somebody holds, from the nearest holder."""
        hops = []
        for target, (want, have) in enumerate(zip(needed, here, strict=True)):
            for index in sorted(want - have):
                holders = [rank for rank, blocks in enumerate(here) if index in blocks]
                if holders:
                    source = min(holders, key=self._distance_to(target))
                    hops.append(Hop(tensor, index, source, target))
        return hops

    def _partial_hops(self, phase: Phase, tensor: str, t: int) -> tuple[Hop, ...]:
        """Partial sums that leave their device between step t - 1 and step t."""
        if t == 0:
            return ()
        before, after = self.held(phase, tensor, t - 1), self.held(phase, tensor, t)
        leaving = {
            (rank, index) for rank, blocks in enumerate(before) for index in blocks - after[rank]
        }
        hops = []
        for target, blocks in enumerate(after):
            for index in sorted(blocks - before[target]):
                holders = [rank for rank, left in leaving if left == index]
                if holders:
                    source = min(holders, key=self._distance_to(target))
                    leaving.remove((source, index))
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

    def _reductions(self, phase: Phase) -> tuple[Reduction, ...]:
        tensor = PRODUCTS[phase].writes
        owners: dict[Index, list[int]] = {}
        for rank, blocks in enumerate(self.end(phase, tensor)):
            for index in blocks:
                owners.setdefault(index, []).append(rank)
        return tuple(
            Reduction(tensor, index, tuple(ranks))
            for index, ranks in sorted(owners.items())
            if len(ranks) > 1
        )
