"""Elements that every device sends: in a primitive's movement, and in collectives.

A ring all-reduce over n devices sends 2 (n - 1) / n of the sum, an all-gather and a reduce-scatter
n - 1 parts. A block for several devices is passed along a chain of them, and so are the partial
sums for one device; all but the last device of a chain send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from math import prod

from primepar.schedule.layout import Layout
from primepar.schedule.lowering import sweeps
from primepar.schedule.movement import Hop, Movement, Return
from primepar.schedule.operators import Index, Linear, Phase

Amounts = tuple[Fraction, ...]
"""Elements, by rank."""
Groups = tuple[tuple[int, ...], ...]
TENSORS = ("I", "W", "O", "dI", "dW", "dO")


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum, rank by rank."""
    return tuple(sum(of_rank, Fraction(0)) for of_rank in zip(*amounts, strict=True))


def shares(layout: Layout, elements: int) -> Amounts:
    """What every rank holds of a tensor of `elements` elements."""
    return tuple(Fraction(len(held) * elements, prod(layout.grid)) for held in layout.held)


def rows(layout: Layout, elements: int) -> Amounts:
    """What every rank holds of a tensor of `elements` elements that is cut as the rows are."""
    ranks = range(layout.ranks)
    return tuple(Fraction(len(layout.slices(rank, 0)) * elements, layout.grid[0]) for rank in ranks)


def all_reduced(groups: Groups, elements: Sequence[Fraction]) -> Amounts:
    """What ring all-reduces over groups send; `elements` are those of every rank."""
    sent = [Fraction(0)] * len(elements)
    for group in groups:
        for rank in group:
            sent[rank] += elements[rank] * 2 * (len(group) - 1) / len(group)
    return tuple(sent)


def gathered(groups: Groups, elements: Sequence[Fraction]) -> Amounts:
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
    movement: Movement,
    operator: Linear,
    phases: tuple[Phase, ...],
    tensors: Collection[str] = TENSORS,
) -> Amounts:
    """What a sequence sends of some tensors in some phases of a linear operator."""
    sizes = _Blocks(movement, operator, tensors)
    sent = [Fraction(0)] * movement.sequence.ranks
    for sweep in sweeps(movement, phases):
        phases_moved = [movement.moved(phase) for phase in sweep]
        opening = dict.fromkeys(hop for phase in phases_moved for hop in phase.prologue)
        sizes.add_hops(sent, opening)
        for step in range(movement.sequence.steps):
            hops = (
                hop
                for phase in phases_moved
                for hop in (*phase.operands[step], *phase.partials[step])
            )
            sizes.add_hops(sent, dict.fromkeys(hops))
            for sum_ in (sum_ for phase in phases_moved for sum_ in phase.returns[step]):
                sizes.add_return(sent, sum_)
    return tuple(sent)


class _Blocks:
    """Elements per block of one operator under one sequence."""

    def __init__(self, movement: Movement, operator: Linear, tensors: Collection[str]) -> None:
        grid = movement.sequence.grid
        self.of = {
            tensor: Fraction(prod(operator.block_shape(tensor, grid)) * (tensor in tensors))
            for tensor in TENSORS
        }

    def add_hops(self, sent: list[Fraction], hops: Iterable[Hop]) -> None:
        """Add blocks that pass along a chain of ranks: all but the last rank send them."""
        messages: dict[tuple[str, Index, int], list[int]] = {}
        for hop in hops:
            messages.setdefault((hop.tensor, hop.index, hop.source), []).append(hop.target)
        for (tensor, _, source), targets in messages.items():
            chain = sorted({source, *targets})
            start = chain.index(source)
            for rank in (*chain[start:], *chain[:start])[:-1]:
                sent[rank] += self.of[tensor]

    def add_return(self, sent: list[Fraction], sum_: Return) -> None:
        """Add partial sums that return to their homes, and the all-reduce over several homes."""
        block, homes = self.of[sum_.tensor], sum_.homes
        if sum_.ranks != homes:
            for home, senders in sum_.parts:
                for rank in senders:
                    sent[rank] += block * (rank != home)
        for rank in homes:
            sent[rank] += block * 2 * (len(homes) - 1) / len(homes)
