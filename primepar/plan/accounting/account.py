"""What every device sends and holds in a training step of a plan, of any plan that can be lowered.

The program of the step is lowered and its events are counted: there is no formula of any operator
here. Equal layers are lowered once. What is counted is what simulated and emulated devices count.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from primepar.operators.step import lower_step
from primepar.operators.step_options import StepOptions
from primepar.passes.make_late import made_late
from primepar.plan.accounting.equal_layers import Shortened
from primepar.plan.accounting.events import BlockBytes, live_bytes
from primepar.plan.accounting.rank_count import RankCount
from primepar.plan.cluster import BYTES
from primepar.plan.plan import Plan
from primepar.schedule.program import Program
from primepar.without_cycles import without_cycles

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
    options = step_options(dtype)
    with without_cycles():
        for short in (Shortened.of(plan), Shortened(plan, ())):
            program = lower_step(short.plan, batch, positions, options=options, passes=UNIFORM)
            account, is_sure = account_of(short, program, dtype)
            if is_sure:
                break
    return account


def account_of(short: Shortened, program: Program, dtype: str) -> tuple[StepAccount, bool]:
    """The account from the program of a short plan, after the passes `UNIFORM`.

    And whether it is sure that layers that are left out change nothing. They may where equal layers
    do not hold or send the same, and where a block is made late to lower the peak: how far it can
    be delayed may depend on them.
    """
    size, watched = BlockBytes(program, dtype), [layer for run in short.runs for layer in run.alike]
    ranks = [RankCount.of(program, rank, size, watched) for rank in range(program.ranks)]
    more, item = [rank.left_out(short.runs) for rank in ranks], BYTES[dtype]
    elements = [tuple(added // item for added in of_rank) for of_rank in more]
    late, after = made_late(program, elements)
    held = tuple(
        max(
            live + item * added
            for live, added in zip(live_bytes(late, rank, size), of_rank, strict=True)
        )
        for rank, of_rank in enumerate(after)
    )
    is_equal = all(rank.is_equal(run) for rank in ranks for run in short.runs)
    sent = tuple(ceil(rank.all_sent(short.runs)) for rank in ranks)
    return StepAccount(sent, held), not short.runs or (is_equal and late is program)


def step_options(dtype: str) -> StepOptions:
    """How a step in a data type is lowered: a short one has wide sums and wide copies."""
    short = BYTES[dtype] < BYTES["float32"]
    return StepOptions(wide_sums=short, masters=short)
