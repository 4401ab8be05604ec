"""Live blocks of a linear operator on every device while it runs, from its movement.

Double buffers of hops, partial sums in flight and blocks kept for a later phase are live as in the
program of the phases.
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
"""Phases that a training step runs as one sweep."""


@dataclass(frozen=True)
class LinearHoldings:
    """Elements of one linear operator on every rank, R ranks.

    `weight_R` is resident, `stash_R` is what else is live between forward and backward. `forward_R`
    and `backward_R` are the peaks during these, including weight, operands and outputs.
    """

    weight_R: Ints
    input_R: Ints
    stash_R: Ints
    output_R: Ints
    input_gradient_R: Ints
    forward_R: Ints
    backward_R: Ints


def held(movement: Movement, operator: Linear, is_copy: bool = False) -> LinearHoldings:
    """Follow the live blocks of an operator through a training step.

    With `is_copy` the weight is a copy of a table, and is freed once backward has read it.
    """
    blocks = _Blocks(movement, operator, is_copy)
    blocks.begin("W", movement.start("forward", "W"))
    weight = blocks.live_R.copy()
    blocks.begin("I", movement.start("forward", "I"))
    inputs = blocks.live_R - weight
    forward = blocks.run(STEP[0])
    outputs = blocks.leave("O")
    stash = blocks.live_R - weight
    blocks.begin("dO", movement.end("forward", "O"))
    backward = blocks.run(STEP[1])
    return LinearHoldings(weight, inputs, stash, outputs, blocks.leave("dI"), forward, backward)


class _Blocks:
    """The live blocks of every rank, and their elements."""

    def __init__(self, movement: Movement, operator: Linear, is_copy: bool) -> None:
        self.movement, self.is_copy, ranks = movement, is_copy, movement.sequence.ranks
        grid = movement.sequence.grid
        tensors = dict.fromkeys(
            tensor for reads, writes in PRODUCTS.values() for tensor in (*reads, writes)
        )
        self.size = {tensor: prod(operator.block_shape(tensor, grid)) for tensor in tensors}
        self.live: dict[str, list[set[Index]]] = {
            tensor: [set() for _ in range(ranks)] for tensor in tensors
        }
        self.live_R: Ints = np.zeros(ranks, np.int64)
        self.most_R = self.live_R.copy()

    def begin(self, tensor: str, blocks: Holdings) -> None:
        """Add live blocks of a tensor."""
        for rank, held in enumerate(blocks):
            self._keep(tensor, rank, self.live[tensor][rank] | held)

    def leave(self, tensor: str) -> Ints:
        """Remove a tensor; returns its elements on every rank."""
        before = self.live_R.copy()
        for rank in range(len(before)):
            self._keep(tensor, rank, set())
        return before - self.live_R

    def _keep(self, tensor: str, rank: int, blocks: Iterable[Index]) -> None:
        kept_blocks = set(blocks)
        self.live_R[rank] += self.size[tensor] * (len(kept_blocks) - len(self.live[tensor][rank]))
        self.live[tensor][rank] = kept_blocks

    def _record_peak(self, more_R: Ints | int = 0) -> None:
        np.maximum(self.most_R, self.live_R + more_R, out=self.most_R)

    def run(self, phases: tuple[Phase, ...]) -> Ints:
        """The peak of live elements during some phases."""
        self.most_R = self.live_R.copy()
        for sweep in sweeps(self.movement, phases):
            for phase in sweep:
                self._arrive(self.movement.moved(phase).prologue)
            self._record_peak()
            for step in range(self.movement.sequence.steps):
                self._step(sweep, step)
            for tensor, blocks in used_up(self.movement, sweep):
                self._end(tensor, blocks)
            if self.is_copy and "backward" in sweep:
                self.leave("W")
        return self.most_R

    def _end(self, tensor: str, blocks: Holdings) -> None:
        for rank, ended in enumerate(blocks):
            self._keep(tensor, rank, self.live[tensor][rank] - ended)

    def _arrive(self, hops: Iterable[Hop]) -> None:
        for hop in hops:
            self._keep(hop.tensor, hop.target, self.live[hop.tensor][hop.target] | {hop.index})

    def _step(self, sweep: tuple[Phase, ...], step: int) -> None:
        """One step: products while blocks and partial sums arrive; then used blocks are freed."""
        movement, waiting_R = self.movement, np.zeros_like(self.live_R)
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
            self._record_peak(waiting_R)
            if self.is_copy and last and phase == "backward":
                self._end("W", movement.held(phase, "W", step))
        reader = {tensor: phase for phase in reversed(sweep) for tensor in PRODUCTS[phase].reads}
        for phase in sweep:
            for hop in movement.moved(phase).partials[step]:
                sent_from = self.live[hop.tensor][hop.source]
                self._keep(hop.tensor, hop.source, sent_from - {hop.index})
        for tensor, phase in reader.items():
            stays = kept(movement, phase, tensor, step)
            self._end(tensor, less(movement.held(phase, tensor, step), stays))
        for phase in sweep:
            returns = movement.moved(phase).returns[step]
            scattered = _scattered(returns)
            for sum_ in returns:
                self._return(sum_, in_place=sum_.ranks in scattered)

    def _return(self, sum_: Return, in_place: bool) -> None:
        """A partial sum is reduced at its homes; a single part to be added needs a buffer there."""
        live, index = self.live[sum_.tensor], sum_.index
        for home, senders in sum_.parts:
            others = [rank for rank in senders if rank != home]
            waits = len(others) == 1 and home in senders and not in_place
            self._keep(sum_.tensor, home, live[home] | {index})
            most = self.live_R[home] + waits * self.size[sum_.tensor]
            self.most_R[home] = max(self.most_R[home], most)
            for rank in others if sum_.ranks != sum_.homes else ():
                self._keep(sum_.tensor, rank, live[rank] - {index})


def _scattered(returns: Iterable[Return]) -> set[tuple[int, ...]]:
    """Groups of ranks in which each is home to the same number of sums: a reduce-scatter."""
    homes: dict[tuple[int, ...], Counter[int]] = {}
    for sum_ in returns:
        if len(sum_.homes) == 1:
            homes.setdefault(sum_.ranks, Counter())[sum_.homes[0]] += 1
    return {ranks for ranks, counts in homes.items()
            if set(counts) == set(ranks) and len(set(counts.values())) == 1}  # fmt: skip
