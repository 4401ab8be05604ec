"""Elements that every device sends: in a primitive's movement, and in collectives.

A ring all-reduce over n devices sends 2 (n - 1) / n of the sum, an all-gather and a reduce-scatter
n - 1 parts. A block for several devices is passed along a chain of them, and so are the partial
sums for one device; all but the last device of a chain send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Several
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import NamedTuple, Self

from primepar.plan.cost.sweeps import Moving, moving
from primepar.schedule.layout import Layout
from primepar.schedule.movement import Hop, Movement, Return
from primepar.schedule.operators import Index, Linear, Phase
from primepar.schedule.sequence import Element, Sequence
from primepar.schedule.sweep_steps import sweep_of, sweeps

Amounts = tuple[Fraction, ...]
"""Elements, by rank."""
Groups = tuple[tuple[int, ...], ...]
TENSORS = ("I", "W", "O", "dI", "dW", "dO")


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum, rank by rank; amounts that are one object, as of equal layers, are added once."""
    every = list(amounts)
    known, times = {id(of_ranks): of_ranks for of_ranks in every}, Counter(map(id, every))
    several = [(of_ranks, times[key]) for key, of_ranks in known.items() if any(of_ranks)]
    return tuple(
        sum((count * of_ranks[rank] for of_ranks, count in several), Fraction(0))
        for rank in range(len(every[0]))
    )


def shares(layout: Layout, elements: int) -> Amounts:
    """What every rank holds of a tensor of `elements` elements."""
    return tuple(Fraction(len(held) * elements, prod(layout.grid)) for held in layout.held)


def rows(layout: Layout, elements: int) -> Amounts:
    """What every rank holds of a tensor of `elements` elements that is cut as the rows are."""
    ranks = range(layout.ranks)
    return tuple(Fraction(len(layout.slices(rank, 0)) * elements, layout.grid[0]) for rank in ranks)


def all_reduced(groups: Groups, elements: Several[Fraction]) -> Amounts:
    """What ring all-reduces over groups send; `elements` are those of every rank."""
    sent = [Fraction(0)] * len(elements)
    for group in groups:
        for rank in group:
            sent[rank] += elements[rank] * 2 * (len(group) - 1) / len(group)
    return tuple(sent)


def gathered(groups: Groups, elements: Several[Fraction]) -> Amounts:
    """What all-gathers of the ranks' elements send, or reduce-scatters into them."""
    sent = [Fraction(0)] * len(elements)
    for group in groups:
        for rank in group:
            sent[rank] += elements[rank] * (len(group) - 1)
    return tuple(sent)


def summed_in_parts(groups: Groups, kept: Layout, elements: int) -> Amounts:
    """What reductions over each group send, into the part of the rows that every rank keeps.

    Ranks of a group that keep the same part are replicas. The group is divided into lines with one
    replica of each part: reduce-scatters along the lines, then all-reduces over the replicas.
    """
    lines, copies = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for group in groups:
        owners: dict[Index, list[int]] = {}
        for rank in group:
            owners.setdefault(kept.held[rank][0], []).append(rank)
        lines += zip(*owners.values(), strict=True)
        copies += map(tuple, owners.values())
    parts = shares(kept, elements)
    return total([gathered(tuple(lines), parts), all_reduced(tuple(copies), parts)])


def sent_by_sequence(
    sequence: Sequence,
    operator: Linear,
    phases: tuple[Phase, ...],
    tensors: Collection[str] = TENSORS,
    spends_weight: bool = False,
) -> Amounts:
    """What a sequence sends of some tensors in some phases of a linear operator.

    Of a cut nothing moves but sums. So devices along the cuts around the other elements send alike,
    each among those along the other elements, and a sum is over the devices of both.
    """
    alone = _Alone.of(sequence.elements, spends_weight)
    counts = _Blocks(sequence, operator, tensors, alone)
    sent = [Fraction(0)] * alone.movement.sequence.ranks
    for sweep in (sweep_of(alone.movement, some) for some in sweeps(alone.movement, phases)):
        counts.add_hops(sent, sweep.opening)
        for step in sweep.steps:
            counts.add_hops(sent, (*step.operands, *step.partials))
            for phase, returns in zip(sweep.phases, step.returns, strict=True):
                for sum_ in returns:
                    counts.add_return(sent, sum_, phase)
    return tuple(sent[rank // alone.inner % len(sent)] for rank in range(sequence.ranks))


class _Alone(NamedTuple):
    """The movement of the elements from the first to the last that is no cut, without the cuts.

    `inner` is the number of devices along the cuts after them.
    """

    movement: Movement
    cuts: tuple[Moving, ...]
    inner: int

    @classmethod
    def of(cls, elements: tuple[Element, ...], spends_weight: bool) -> Self:
        """The elements of a sequence."""
        moves = [place for place, element in enumerate(elements) if not moving(element).is_cut]
        first, last = (moves[0], moves[-1] + 1) if moves else (0, 0)
        cuts = tuple(map(moving, (*elements[:first], *elements[last:])))
        inner = prod(len(element.devices) for element in elements[last:])
        return cls(_movement(elements[first:last], spends_weight), cuts, inner)

    def copies(self, phase: Phase) -> int:
        """Devices along the cuts that have partial sums of one block of a phase."""
        return prod(cut.devices for cut in self.cuts if phase in cut.summed)


@lru_cache(maxsize=256)
def _movement(elements: tuple[Element, ...], spends_weight: bool) -> Movement:
    return Movement(Sequence(elements), spends_weight)


class _Blocks:
    """Elements per block of one operator under one sequence."""

    def __init__(
        self, sequence: Sequence, operator: Linear, tensors: Collection[str], alone: _Alone
    ) -> None:
        self.alone = alone
        self.of = {
            tensor: Fraction(prod(operator.block_shape(tensor, sequence.grid)))
            for tensor in tensors
        }

    def add_hops(self, sent: list[Fraction], hops: Iterable[Hop]) -> None:
        """Add blocks that pass along a chain of ranks: all but the last rank send them."""
        messages: dict[tuple[str, Index, int], list[int]] = {}
        for hop in hops:
            if hop.tensor in self.of:
                messages.setdefault((hop.tensor, hop.index, hop.source), []).append(hop.target)
        for (tensor, _, source), targets in messages.items():
            members = sorted({source, *targets})
            start = members.index(source)
            for rank in (*members[start:], *members[:start])[:-1]:
                sent[rank] += self.of[tensor]

    def add_return(self, sent: list[Fraction], sum_: Return, phase: Phase) -> None:
        """Add partial sums that return to their homes, and the all-reduce over several homes."""
        block, homes = self.of.get(sum_.tensor), sum_.homes
        if block is None:
            return
        if sum_.ranks != homes:
            for home, senders in sum_.parts:
                for rank in senders:
                    sent[rank] += block * (rank != home)
        members = len(homes) * self.alone.copies(phase)
        for rank in homes:
            sent[rank] += block * 2 * (members - 1) / members
