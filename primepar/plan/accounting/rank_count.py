"""What one rank holds and sends in the step of a short plan, in all and of single layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Self, TypeAlias

from primepar.plan.accounting.equal_layers import ShortRun
from primepar.plan.accounting.events import Size, live_changes, sent
from primepar.plan.pipeline_layout import layer_of
from primepar.schedule.effects import effects
from primepar.schedule.program import Instruction, Program

Layer = int | None
"""The number of a layer in a short plan; None is outside of all layers."""
Amount: TypeAlias = Fraction | int


@dataclass(frozen=True)
class RankCount:
    """One event for each instruction of a rank, after one for the start of its program.

    `running` is the layer that made a block last. `live` has for some layers the bytes of their
    live blocks after each event, and `sent` the bytes that each layer sends.
    """

    running: list[Layer]
    live: dict[int, list[int]]
    sent: dict[Layer, Fraction]

    @classmethod
    def of(cls, program: Program, rank: int, size: Size, layers: Collection[int]) -> Self:
        """Count the events of a rank, and what some of the layers hold after each."""
        running, now = list[Layer](), dict.fromkeys(layers, 0)
        live: dict[int, list[int]] = {layer: [] for layer in layers}
        sent_by: defaultdict[Layer, Fraction] = defaultdict(Fraction)
        layer: Layer = None
        for node, changes in live_changes(program, rank, size):
            for block, grown in changes:
                owner = layer_of(block)
                if owner in now:
                    now[owner] += grown
                layer = owner if grown > 0 else layer
            running.append(layer)
            for known, amounts in live.items():
                amounts.append(now[known])
            for owner, amount in () if node is None else _sent_by_layer(node, rank, size):
                sent_by[owner] += amount
        return cls(running, live, sent_by)

    def is_equal(self, run: ShortRun) -> bool:
        """Whether two layers of a run send the same, and hold it while none of the run runs."""
        second, third = run.alike
        states = zip(self.running, self.live[second], self.live[third], strict=True)
        return self.sent.get(second, 0) == self.sent.get(third, 0) and all(
            held == held_by_third for layer, held, held_by_third in states
            if layer not in run.layers
        )  # fmt: skip

    def all_sent(self, runs: Iterable[ShortRun]) -> Fraction:
        """Bytes that the rank sends in the step of the whole plan."""
        left_out = (run.left_out * self.sent.get(run.alike[0], Fraction(0)) for run in runs)
        return sum((*self.sent.values(), *left_out), Fraction(0))

    def left_out(self, runs: Iterable[ShortRun]) -> list[int]:
        """Bytes that layers left out of the short plan hold at each event.

        0 while one of the two layers runs that they are between: the peak is in no such event.
        """
        added = [0] * len(self.running)
        for run in runs:
            second, third = (self.live[layer] for layer in run.alike)
            for event, layer in enumerate(self.running):
                if layer not in run.alike:
                    held = third if layer == run.first else second
                    added[event] += run.left_out * held[event]
        return added


def _sent_by_layer(node: Instruction, rank: int, size: Size) -> Iterator[tuple[Layer, Amount]]:
    """Bytes that leave a rank for an instruction, by layers: a coalesced sum is of several."""
    amount = sent(node, rank, size)
    if amount:
        layers = {
            layer_of(block) for block in (*effects(node, rank).reads, *effects(node, rank).writes)
        }
        if len(layers) == 1:
            yield layers.pop(), amount
        else:
            yield from ((layer, sent(node, rank, _size_in(layer, size))) for layer in layers)


def _size_in(layer: Layer, size: Size) -> Size:
    """The size of a layer's blocks; 0 of others."""
    return lambda block: size(block) if layer_of(block) == layer else 0
