"""Elements that leave every device: of a primitive's movement, and of sums over groups.

A ring all-reduce over n devices sends 2 (n - 1) / n of the sum, an all-gather and a reduce-scatter
n - 1 parts. A block that goes to several devices passes along a chain of them, and so do the parts
of a sum that goes to one; all but the last device of a chain send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod

from primepar.schedule.layout import Layout
from primepar.schedule.lowering import sweeps
from primepar.schedule.movement import Hop, Movement, Return
from primepar.schedule.operators import Index, Linear, Phase

Amounts = tuple[Fraction, ...]
"""Elements of every rank."""
Groups = tuple[tuple[int, ...], ...]


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum for every rank."""
    return tuple(sum(own, Fraction(0)) for own in zip(*amounts, strict=True))


def shares(layout: Layout, elements: int) -> Amounts:
    """What every rank has of a tensor of so many elements."""
    return tuple(Fraction(len(held) * elements, prod(layout.grid)) for held in layout.held)


def rows(layout: Layout, elements: int) -> Amounts:
    """What every rank has of a tensor of so many elements that is cut as the rows are."""
    ranks = range(layout.ranks)
    return tuple(Fraction(len(layout.slices(each, 0)) * elements, layout.grid[0]) for each in ranks)


def all_reduced(groups: Groups, own: Sequence[Fraction]) -> Amounts:
    """Rings over groups of ranks that have so many elements each; a rank in no group is alone."""
    found = [Fraction(0)] * len(own)
    for group in groups:
        for rank in group:
            found[rank] += own[rank] * 2 * (len(group) - 1) / len(group)
    return tuple(found)


def gathered(groups: Groups, own: Sequence[Fraction]) -> Amounts:
    """All-gathers of what the ranks of each group have, or reduce-scatters into it."""
    found = [Fraction(0)] * len(own)
    for group in groups:
        for rank in group:
            found[rank] += own[rank] * (len(group) - 1)
    return tuple(found)


def summed_in_parts(groups: Groups, kept: Layout, elements: int) -> Amounts:
    """Sums over each group into the part of the rows that every rank keeps, one block each.

    Ranks of a group that keep the same part sum into one copy of each, and then the copies.
    """
    lines, copies = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for group in groups:
        owners: dict[Index, list[int]] = {}
        for rank in group:
            owners.setdefault(kept.held[rank][0], []).append(rank)
        lines += zip(*owners.values(), strict=True)
        copies += map(tuple, owners.values())
    own = shares(kept, elements)
    return total([gathered(tuple(lines), own), all_reduced(tuple(copies), own)])


def moved(movement: Movement, operator: Linear, phases: tuple[Phase, ...]) -> Amounts:
    """What a sequence sends in some phases of a linear operator of that shape."""
    sizes = _Blocks(movement, operator)
    found = [Fraction(0)] * movement.sequence.ranks
    for sweep in sweeps(movement, phases):
        own = [movement.moved(phase) for phase in sweep]
        opening = dict.fromkeys(hop for phase in own for hop in phase.prologue)
        sizes.add_hops(found, opening)
        for step in range(movement.sequence.steps):
            here = (hop for phase in own for hop in (*phase.operands[step], *phase.partials[step]))
            sizes.add_hops(found, dict.fromkeys(here))
            for each in (each for phase in own for each in phase.returns[step]):
                sizes.add_return(found, each)
    return tuple(found)


class _Blocks:
    """Elements of the blocks of one operator under one sequence."""

    def __init__(self, movement: Movement, operator: Linear) -> None:
        grid = movement.sequence.grid
        self.of = {
            tensor: Fraction(prod(operator.block_shape(tensor, grid)))
            for tensor in ("I", "W", "O", "dI", "dW", "dO")
        }

    def add_hops(self, found: list[Fraction], hops: Iterable[Hop]) -> None:
        """Blocks that go to one rank or several: all but the last of these send them."""
        ways: dict[tuple[str, Index, int], list[int]] = {}
        for hop in hops:
            ways.setdefault((hop.tensor, hop.index, hop.source), []).append(hop.target)
        for (tensor, _, source), targets in ways.items():
            chain = sorted({source, *targets})
            at = chain.index(source)
            for rank in (*chain[at:], *chain[:at])[:-1]:
                found[rank] += self.of[tensor]

    def add_return(self, found: list[Fraction], each: Return) -> None:
        """Parts of a sum that go to their homes, and the sum over several homes."""
        block, homes = self.of[each.tensor], each.homes
        if each.ranks != homes:
            for home, senders in each.parts:
                for rank in senders:
                    found[rank] += block * (rank != home)
        for rank in homes:
            found[rank] += block * 2 * (len(homes) - 1) / len(homes)
