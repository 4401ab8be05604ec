"""What every device sends and holds in a training step of a plan, of any plan that can be lowered.

The program of the step is lowered and its events are counted: there is no formula of any operator
here. Equal layers are lowered once. What is counted is what simulated and emulated devices count.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import NamedTuple, Self

from primepar.operators.step import lower_step
from primepar.operators.step_options import StepOptions
from primepar.passes.make_late import made_late
from primepar.plan.accounting.equal_layers import Shortened, ShortPlan
from primepar.plan.accounting.events import BlockBytes, RankEvent, rank_events
from primepar.plan.cluster import BYTES
from primepar.plan.plan import Plan
from primepar.schedule.program import Program

MOST_COUNTED = 64
"""Devices up to which the search counts the programs of plans; on 64 it takes a few seconds."""
UNIFORM = ("free-early", "merge-products", "merge-collectives", "coalesce-reductions")
"""Passes that change every one of equal layers alike. Of the others, `make-late` lowers the peak
where it is in the whole step; the rest moves transfers, and neither bytes nor the peak change."""


@dataclass(frozen=True)
class StepAccount:
    """Bytes of every rank: `sent` in a training step, and `held`, the peak of the live ones."""

    sent: tuple[int, ...]
    held: tuple[int, ...]


def accounting(plan: Plan, batch: int, positions: int, dtype: str) -> StepAccount:
    """Count a training step of `batch` sequences of `positions` tokens in a data type.

    Live are all blocks of the step's program: parameters with their copies, moments and gradients,
    what forward stashes, and buffers from the post of their receive on. Bytes sent are rounded up.
    Raises `PlanError` for a batch that the plan cannot cut.
    """
    shortened = Shortened.of(plan)
    base, *longer = (
        _Counted.of(short, batch, positions, dtype)
        for short in (shortened.short, *(more for more, _ in shortened.longer))
    )
    times = [count for _, count in shortened.longer]
    more = [base.left_out(rank, longer, times) for rank in range(plan.ranks)]
    return StepAccount(
        tuple(ceil(base.sent(rank) + added.sent) for rank, added in enumerate(more)),
        base.with_late([added.live for added in more]),
    )


def step_options(dtype: str) -> StepOptions:
    """How a step in a data type is lowered: a short one has wide sums and wide copies."""
    short = BYTES[dtype] < BYTES["float32"]
    return StepOptions(wide_sums=short, masters=short)


class _LeftOut(NamedTuple):
    """What the layers that are left out add on a rank: bytes sent, and bytes after each event."""

    sent: Fraction | int
    live: list[int]


@dataclass(frozen=True)
class _Counted:
    """The program of a step, and its events on every rank with the phases of the whole plan."""

    program: Program
    dtype: str
    events: list[list[RankEvent]]

    @classmethod
    def of(cls, short: ShortPlan, batch: int, positions: int, dtype: str) -> Self:
        """The step of a plan."""
        options = step_options(dtype)
        program = lower_step(short.plan, batch, positions, options=options, passes=UNIFORM)
        size = BlockBytes(program, dtype)
        events = [
            [event._replace(phase=short.phase(event.phase)) for event in
             rank_events(program, rank, size)] for rank in range(program.ranks)
        ]  # fmt: skip
        return cls(program, dtype, events)

    def sent(self, rank: int) -> Fraction | int:
        """Bytes that a rank sends."""
        return sum((event.sent for event in self.events[rank]), Fraction(0))

    def live(self, rank: int) -> dict[tuple[str, int], int]:
        """The most bytes that are live on a rank, from one phase that it runs to the next."""
        most: dict[tuple[str, int], int] = {}
        for event in self.events[rank]:
            most[event.place] = max(event.live, most.get(event.place, 0))
        return most

    def left_out(self, rank: int, longer: list[_Counted], times: list[int]) -> _LeftOut:
        """What more layers add on a rank, from steps with one more, each `times`."""
        base, sent = self.live(rank), Fraction(0)
        added = dict.fromkeys(base, 0)
        for more, count in zip(longer, times, strict=True):
            sent += count * (more.sent(rank) - self.sent(rank))
            live = more.live(rank)
            for place in added:
                added[place] += count * (live[place] - base[place])
        return _LeftOut(sent, [added[event.place] for event in self.events[rank]])

    def with_late(self, more: list[list[int]]) -> tuple[int, ...]:
        """The peak of every rank after `make-late`, with additional live bytes at each event."""
        item, size = BYTES[self.dtype], BlockBytes(self.program, self.dtype)
        elements = [tuple(added // item for added in of_rank) for of_rank in more]
        late, after = made_late(self.program, elements)
        return tuple(
            max(
                event.live + item * added
                for event, added in zip(rank_events(late, rank, size), of_rank, strict=True)
            )
            for rank, of_rank in enumerate(after)
        )
