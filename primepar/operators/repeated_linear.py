"""Products of a linear operator that repeat for every micro-batch of a step.

A second forward may run before the backward of the first, so each finds the weight at home: where a
phase would move it, the phase gets a copy, which is freed after it. The copy of backward comes from
home by a redistribution (ours; the alternative, keeping what forward left, takes one more weight
per micro-batch in flight).

The gradient of the weight is summed over micro-batches. A sum that stays where it is computed is
accumulated there. An all-reduce at its end, of data parallelism, waits for the last micro-batch.
Any other sum that travels or is reduced (PrimePar's, SUMMA's) is finished for every micro-batch in
a scratch block, and added at its home: to keep SUMMA's partial panels instead would take as many
blocks as the mesh has rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from primepar.operators.builder import Held, View
from primepar.operators.linear_products import Phases, Products, lowered
from primepar.operators.redistribution import moved, reblocked
from primepar.operators.step_context import StepContext
from primepar.passes.block_uses import Rank, followed
from primepar.plan.layouts import Way
from primepar.plan.operator_layouts import movement_of, part
from primepar.schedule.layout import Layout
from primepar.schedule.lowering import layout
from primepar.schedule.operators import Linear, Phase, block_name, scratch_name
from primepar.schedule.program import AllReduce, Compute, Free, Instruction, Program
from primepar.schedule.sequence import Sequence

_SUM = frozenset(("dW",))


@dataclass(frozen=True)
class RepeatedProducts:
    """The products of one operator in a micro-batch; `home` is its weight."""

    step: StepContext
    products: Products
    home: View

    def forward(self) -> Program:
        """Append the forward product; returns its program."""
        return self._on_weight("forward")

    def backward(self) -> tuple[View, View]:
        """Append both gradients; returns those of input and weight, this one once summed."""
        phases: Phases = ("backward",) if self.step.splits else ("backward", "gradient")
        done = self._on_weight(*phases)
        dx = self.products.made(done, "dI")
        with self.step.weight_gradients():
            if self.step.splits:
                done = self._append("gradient")
            return dx, self._summed(done)

    def _on_weight(self, *phases: Phase) -> Program:
        """Append phases that read W, on a copy of it if they would not leave it at home."""
        products, builder = self.products, self.products.builder
        program = lowered(products.sequence, products.operator, phases)
        start, end = (
            products.held(blocks or (), "W") for blocks in (program.initial, program.final)
        )
        copy, name = self.home, f"{products.name}/W.{phases[0]}"
        if not _same(start, copy.held):
            way = Way(*(self._weight_layout(phase) for phase in ("forward", phases[0])))
            copy = moved(builder, copy, way, copy.cuts, name, shared=True)
        elif not _same(end, start):
            copy = reblocked(builder, copy, copy.cuts, name, copy=True)
        products.names["W"] = copy.name
        self._append(*phases)
        if copy is not self.home:
            for instructions, indices in zip(builder.programs, end, strict=True):
                instructions += [Free(block_name(copy.name, index)) for index in indices]
        return program

    def _weight_layout(self, phase: Phase) -> Layout:
        """Return the layout of W before a phase, over the dims of its blocks."""
        movement = movement_of(str(self.products.sequence), True)
        over = (1, 0) if "W" in self.products.turned else (0, 1)
        return part(layout(movement, phase, "W", last=False), over)

    def _append(self, *phases: Phase) -> Program:
        """Append phases; the sum of a weight gradient that moves is added where it ends."""
        products = self.products
        program = lowered(products.sequence, products.operator, phases)
        sums = _sums(products.sequence, products.operator, phases)
        if not sums.moves:
            products.append(sums.parts, phases)
            return program
        products.append(sums.parts, phases, apart=_SUM)
        held = products.held(program.final or (), "dW")
        for instructions, indices in zip(products.builder.programs, held, strict=True):
            for block in (block_name(products.written("dW"), index) for index in indices):
                arrived = scratch_name(block)
                instructions += [Compute((arrived,), block), Free(arrived)]
        return program

    def _summed(self, done: Program) -> View:
        """Declare the gradient of the weight, all-reduced in the last micro-batch."""
        products = self.products
        phases: Phases = ("gradient",) if self.step.splits else ("backward", "gradient")
        sums = _sums(products.sequence, products.operator, phases)
        dw = products.summed(done, "dW")
        with self.step.at_last():
            products.append(sums.reductions, ())
            return products.rounded(dw, "dW")


def _same(held: Held, other: Held) -> bool:
    """Return whether every rank has the same blocks."""
    return [set(indices) for indices in held] == [set(indices) for indices in other]


class _Sums(NamedTuple):
    """A program, and apart from it the all-reduces that end its weight gradients.

    `moves`: something else than these all-reduces and products changes or sends a gradient.
    """

    parts: Program
    reductions: Program
    moves: bool


@lru_cache(maxsize=1024)
def _sums(sequence: Sequence, operator: Linear, phases: Phases) -> _Sums:
    program = lowered(sequence, operator, phases)
    last = [Counter(_last_reductions(rank, nodes)) for rank, nodes in enumerate(program.programs)]
    parts, reductions = list[list[Instruction]](), list[list[Instruction]]()
    moves = False
    for rank, nodes in enumerate(program.programs):
        common = {node for node in last[rank] if all(last[member][node] for member in node.group)}
        reductions.append(
            [node for node in nodes if isinstance(node, AllReduce) and node in common]
        )
        kept = {id(node) for node in reductions[-1]}
        parts.append([node for node in nodes if id(node) not in kept])
        moves |= any(_moves_sum(rank, node) for node in parts[-1])
    return _Sums(
        replace(program, programs=tuple(map(tuple, parts))),
        replace(program, programs=tuple(map(tuple, reductions))),
        moves,
    )


def _last_reductions(rank: int, nodes: tuple[Instruction, ...]) -> Iterator[AllReduce]:
    """Yield the all-reduces of weight gradients that nothing uses afterwards."""
    used_later: set[str] = set()
    for node, used in reversed(list(followed(nodes, Rank(rank)))):
        names = {*used.reads, *used.changes}
        if isinstance(node, AllReduce) and _is_sum(node.block) and not names & used_later:
            yield node
        else:
            used_later |= names


def _moves_sum(rank: int, node: Instruction) -> bool:
    is_product = isinstance(node, Compute) and node.phase is not None
    used = Rank(rank).touched(node)
    return not is_product and any(map(_is_sum, (*used.reads, *used.changes)))


def _is_sum(block: str) -> bool:
    return block.startswith("dW[")
