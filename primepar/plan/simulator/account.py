"""What every device sends and holds in a training step of a plan, of any plan that can be lowered.

The program of the step is lowered and its events are counted: there is no formula of any operator
here. What is counted is what simulated and emulated devices count.

In a run of equal layers, each layer adds the same number of bytes to what is sent, and to what is
live while other layers run. So a few layers of a run give those of any number. Example: layers 0 to
79 are equal. A plan of the layers 0, 1, 78 and 79 is lowered. What layer 78 holds while layer 0
runs is counted 76 times more, and what layer 1 holds while layer 79 runs.

With several micro-batches all layers are lowered. There forward of one micro-batch keeps what
backward of another frees, so that a block may be made later than all of a layer in between.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, groupby
from math import ceil, inf
from typing import NamedTuple, Self

from msgspec.structs import replace

from primepar.operators.step import lower_step
from primepar.passes.make_late import made_late
from primepar.plan.cluster import BYTES
from primepar.plan.kernels import BlockBytes, step_options
from primepar.plan.pipeline_layout import layer_of, layer_operator
from primepar.plan.plan import Plan
from primepar.plan.simulator.work import Size
from primepar.schedule.ledger import changes, sends
from primepar.schedule.program import Program
from primepar.schedule.sharing import sharing
from primepar.without_cycles import without_cycles

LOWERED = 4
"""Layers of a run that are lowered; a run of no more is lowered whole."""
TOO_MUCH = 1.1
"""Bytes over a bound from which on a plan is not counted with all of its layers too."""
MOST_COUNTED = 64
"""Devices up to which the search counts the programs of plans; on 64 it takes a few seconds."""
UNIFORM = ("free-early", "merge-products", "merge-collectives", "coalesce-reductions")
"""Passes that change every one of equal layers alike. Of the others, `make-late` lowers the peak
where it is in the whole step; the rest moves transfers, and neither bytes nor the peak change."""


class ShortRun(NamedTuple):
    """A run of equal layers, by the number of the first one in a plan that has `LOWERED` of them.

    `left_out` layers, in the middle of the run, are not in that plan.
    """

    first: int
    left_out: int

    @property
    def alike(self) -> tuple[int, int]:
        """The layers before and after those that are left out: these are as they are."""
        after = self.first + LOWERED // 2
        return after - 1, after

    @property
    def layers(self) -> range:
        """The layers of the short plan that are in the run."""
        return range(self.first, self.first + LOWERED)


@dataclass(frozen=True)
class Shortened:
    """A plan with few layers of each run of equal ones."""

    plan: Plan
    runs: tuple[ShortRun, ...]

    @classmethod
    def of(cls, plan: Plan, fewer: int | None = None) -> Shortened:
        """The plan with at most `LOWERED` layers of a run, and two less of the run `fewer`."""
        layers: list[dict[str, str]] = [{} for _ in range(plan.model.layers)]
        sequences = {}
        for name, text in plan.sequences.items():
            layer = layer_of(name)
            if layer is None:
                sequences[name] = text
            else:
                layers[layer][layer_operator(name)] = text
        kept, runs = list[dict[str, str]](), list[ShortRun]()
        for texts, equal in groupby(layers):
            long = count = len([*equal])
            if long > LOWERED and plan.pipeline is None:
                count = LOWERED - 2 * (len(runs) == fewer)
                runs.append(ShortRun(len(kept), long - count))
            kept += [texts] * count
        if not runs:
            return cls(plan, ())
        sequences |= {
            f"blocks.{number}.{name}": text
            for number, texts in enumerate(kept)
            for name, text in texts.items()
        }
        model = dataclasses.replace(plan.model, layers=len(kept))
        return cls(replace(plan, model=model, sequences=sequences), tuple(runs))


@dataclass(frozen=True)
class StepAccount:
    """Bytes of every rank: `sent` in a training step, and `held`, the peak of the live ones."""

    sent: tuple[int, ...]
    held: tuple[int, ...]


def accounting(
    plan: Plan, batch: int, positions: int, dtype: str, bound: float = inf
) -> StepAccount:
    """Count a training step of `batch` sequences of `positions` tokens in a data type.

    Live are all blocks of the step's program: parameters with their copies, moments and gradients,
    what forward stashes, and buffers from the post of their receive on. Bytes sent are rounded up.
    Where a few layers hold far more than a `bound`, what they hold is taken as it is. Raises
    `PlanError` for a batch that the plan cannot cut.
    """
    options = step_options(dtype)
    with without_cycles(), sharing():
        for short in (Shortened.of(plan), Shortened(plan, ())):
            program = lower_step(short.plan, batch, positions, options=options, passes=UNIFORM)
            account, is_sure = account_of(short, program, dtype)
            if is_sure or max(account.held) > TOO_MUCH * bound:
                break
    return account


def account_of(short: Shortened, program: Program, dtype: str) -> tuple[StepAccount, bool]:
    """The account from the program of a short plan, after the passes `UNIFORM`.

    And whether it is sure that layers that are left out change nothing. They may where equal layers
    do not hold or send the same, and where a block is made late to lower the peak: how far it can
    be delayed may depend on them.
    """
    size, watched = BlockBytes(program, dtype), [layer for run in short.runs for layer in run.alike]
    ranks = [_RankCount.of(program, rank, size, watched) for rank in range(program.ranks)]
    more, item = [rank.left_out(short.runs) for rank in ranks], BYTES[dtype]
    elements = [tuple(added // item for added in of_rank) for of_rank in more]
    late, after = made_late(program, elements)
    held = []
    for rank, of_rank in enumerate(after):
        live = accumulate(
            sum(map(size, fresh)) - sum(map(size, gone)) for _, gone, fresh in changes(late, rank)
        )
        held.append(max(now + item * added for now, added in zip(live, of_rank, strict=True)))
    is_equal = all(rank.is_equal(run) for rank in ranks for run in short.runs)
    sent = tuple(ceil(rank.all_sent(short.runs)) for rank in ranks)
    return StepAccount(sent, tuple(held)), not short.runs or (is_equal and late is program)


@dataclass(frozen=True)
class _RankCount:
    """One event for each instruction of a rank, after one for the start of its program.

    Layers have their numbers in a short plan; None is outside of all. `running` is the layer that
    made a block last. `live` has for some layers the bytes of their live blocks after each event,
    and `sent` the bytes that each layer sends.
    """

    running: list[int | None]
    live: dict[int, list[int]]
    sent: dict[int | None, Fraction]

    @classmethod
    def of(cls, program: Program, rank: int, size: Size, layers: Collection[int]) -> Self:
        """Count the events of a rank, and what some of the layers hold after each."""
        running, now = list[int | None](), dict.fromkeys(layers, 0)
        live: dict[int, list[int]] = {layer: [] for layer in layers}
        sent_by: defaultdict[int | None, Fraction] = defaultdict(Fraction)
        layer: int | None = None
        for _, gone, fresh in changes(program, rank):
            for sign, blocks in ((-1, gone), (1, fresh)):
                for block in blocks:
                    owner = layer_of(block)
                    if owner in now:
                        now[owner] += sign * size(block)
                    layer = owner if sign > 0 else layer
            running.append(layer)
            for known, amounts in live.items():
                amounts.append(now[known])
        for node in program.programs[rank]:
            for block, times in sends(node, rank):
                sent_by[layer_of(block)] += times * size(block)  # a coalesced sum is of several
        return cls(running, live, sent_by)

    def is_equal(self, run: ShortRun) -> bool:
        """Whether two layers of a run send the same, and hold it while none of the run runs."""
        one, other = run.alike
        states = zip(self.running, self.live[one], self.live[other], strict=True)
        return self.sent.get(one, 0) == self.sent.get(other, 0) and all(
            held == held_by_other
            for layer, held, held_by_other in states
            if layer not in run.layers
        )

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
            before, after = (self.live[layer] for layer in run.alike)
            for event, layer in enumerate(self.running):
                if layer not in run.alike:
                    is_before = layer is not None and run.first <= layer < run.alike[0]
                    held = after if is_before else before
                    added[event] += run.left_out * held[event]
        return added
