"""What the blocks of a linear operator take on every device while it runs: read off its movement.

Two buffers of what hops, partial sums on their way and what is kept for a later phase are there as
the phases have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from primepar.schedule.holdings import Holdings, less
from primepar.schedule.lowering import kept, sweeps, used_up
from primepar.schedule.movement import Hop, Movement, Return
from primepar.schedule.operators import PRODUCTS, Index, Linear, Phase

Ints = NDArray[np.int64]
STEP: tuple[tuple[Phase, ...], ...] = (("forward",), ("backward", "gradient"))
"""Phases that run on their own in a training step."""


@dataclass(frozen=True)
class LinearHoldings:
    """Elements of one linear operator on every rank, R ranks.

    `weight_R` rests, `stash_R` is what else lies there between forward and backward; `forward_R`
    and `backward_R` are the most that is there during these, weight, operands and outputs alike.
    """

    weight_R: Ints
    input_R: Ints
    stash_R: Ints
    output_R: Ints
    input_gradient_R: Ints
    forward_R: Ints
    backward_R: Ints


def held(movement: Movement, operator: Linear, lent: bool = False) -> LinearHoldings:
    """Follow the blocks of an operator of that shape through a training step.

    A weight that is `lent` is a copy, and gone once backward has read it.
    """
    blocks = _Blocks(movement, operator, lent)
    blocks.begin("W", movement.start("forward", "W"))
    weight = blocks.now_R.copy()
    blocks.begin("I", movement.start("forward", "I"))
    given = blocks.now_R - weight
    forward = blocks.run(STEP[0])
    made = blocks.leave("O")
    stash = blocks.now_R - weight
    blocks.begin("dO", movement.end("forward", "O"))
    backward = blocks.run(STEP[1])
    return LinearHoldings(weight, given, stash, made, blocks.leave("dI"), forward, backward)


class _Blocks:
    """The blocks that are there, and how much they are."""

    def __init__(self, movement: Movement, operator: Linear, lent: bool) -> None:
        self.movement, self.lent, ranks = movement, lent, movement.sequence.ranks
        grid = movement.sequence.grid
        tensors = dict.fromkeys(
            each for reads, writes in PRODUCTS.values() for each in (*reads, writes)
        )
        self.size = {each: prod(operator.block_shape(each, grid)) for each in tensors}
        self.there: dict[str, list[set[Index]]] = {
            each: [set() for _ in range(ranks)] for each in tensors
        }
        self.now_R: Ints = np.zeros(ranks, np.int64)
        self.most_R = self.now_R.copy()

    def begin(self, tensor: str, blocks: Holdings) -> None:
        """Have blocks of a tensor there."""
        for rank, own in enumerate(blocks):
            self._keep(tensor, rank, self.there[tensor][rank] | own)

    def leave(self, tensor: str) -> Ints:
        """Count a tensor no more; returns what it was."""
        before = self.now_R.copy()
        for rank in range(len(before)):
            self._keep(tensor, rank, set())
        return before - self.now_R

    def _keep(self, tensor: str, rank: int, blocks: Iterable[Index]) -> None:
        own = set(blocks)
        self.now_R[rank] += self.size[tensor] * (len(own) - len(self.there[tensor][rank]))
        self.there[tensor][rank] = own

    def _look(self, more_R: Ints | int = 0) -> None:
        np.maximum(self.most_R, self.now_R + more_R, out=self.most_R)

    def run(self, phases: tuple[Phase, ...]) -> Ints:
        """The most that is there during some phases."""
        self.most_R = self.now_R.copy()
        for sweep in sweeps(self.movement, phases):
            for phase in sweep:
                self._arrive(self.movement.moved(phase).prologue)
            self._look()
            for step in range(self.movement.sequence.steps):
                self._step(sweep, step)
            for tensor, blocks in used_up(self.movement, sweep):
                self._end(tensor, blocks)
            if self.lent and "backward" in sweep:
                self.leave("W")
        return self.most_R

    def _end(self, tensor: str, blocks: Holdings) -> None:
        for rank, own in enumerate(blocks):
            self._keep(tensor, rank, self.there[tensor][rank] - own)

    def _arrive(self, hops: Iterable[Hop]) -> None:
        for hop in hops:
            self._keep(hop.tensor, hop.target, self.there[hop.tensor][hop.target] | {hop.index})

    def _step(self, sweep: tuple[Phase, ...], step: int) -> None:
        """Products while blocks and partial sums arrive, then what is done with goes."""
        movement, waiting_R = self.movement, np.zeros_like(self.now_R)
        for phase in sweep:
            moved = movement.moved(phase)
            self._arrive(moved.operands[step])
            self._arrive(moved.partials[step])
            for hop in moved.partials[step]:
                waiting_R[hop.target] += self.size[hop.tensor]
        last = step == movement.sequence.steps - 1
        for phase in sweep:
            writes = PRODUCTS[phase].writes
            self.begin(writes, movement.held(phase, writes, step))
            self._look(waiting_R)
            if self.lent and last and phase == "backward":
                self._end("W", movement.held(phase, "W", step))
        reader = {tensor: phase for phase in reversed(sweep) for tensor in PRODUCTS[phase].reads}
        for phase in sweep:
            for hop in movement.moved(phase).partials[step]:
                here = self.there[hop.tensor][hop.source]
                self._keep(hop.tensor, hop.source, here - {hop.index})
        for tensor, phase in reader.items():
            stays = kept(movement, phase, tensor, step)
            self._end(tensor, less(movement.held(phase, tensor, step), stays))
        for phase in sweep:
            returns = movement.moved(phase).returns[step]
            scattered = _scattered(returns)
            for each in returns:
                self._return(each, in_place=each.ranks in scattered)

    def _return(self, each: Return, in_place: bool) -> None:
        """A sum goes home; where that has one other part to add, this waits in a buffer."""
        there, index = self.there[each.tensor], each.index
        for home, senders in each.parts:
            others = [rank for rank in senders if rank != home]
            waits = len(others) == 1 and home in senders and not in_place
            self._keep(each.tensor, home, there[home] | {index})
            most = self.now_R[home] + waits * self.size[each.tensor]
            self.most_R[home] = max(self.most_R[home], most)
            for rank in others if each.ranks != each.homes else ():
                self._keep(each.tensor, rank, there[rank] - {index})


def _scattered(returns: Iterable[Return]) -> set[tuple[int, ...]]:
    """Groups of ranks each of which is home to as many of their sums: a reduce-scatter."""
    homes: dict[tuple[int, ...], Counter[int]] = {}
    for each in returns:
        if len(each.homes) == 1:
            homes.setdefault(each.ranks, Counter())[each.homes[0]] += 1
    return {ranks for ranks, found in homes.items()
            if set(found) == set(ranks) and len(set(found.values())) == 1}  # fmt: skip
