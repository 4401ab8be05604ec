"""How much CPU does gloo take for each MiB of a message and of an all-reduce?

That is what no executor can save. All ranks run under SCHED_BATCH; the calls take turns in every
round. With `--messages 442368 --reduced 196608` a bound is printed: CPU of the first number of KiB,
sent in messages, over that of the second, sent in all-reduces. Both are bytes of all ranks in a
step, as in the tables of `make bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Annotated

import torch
from torch import distributed as dist

from benchmarks.bench import BenchRow, Case, Column, bench, cpu_seconds
from benchmarks.world import on_ranks

CALLS = 6
"""Calls of one kind in a round."""
Costs = dict[tuple[int, str], list[float]]
"""(MiB of a call, kind of call) -> CPU ms of all ranks for each MiB that is sent, by round."""


def kinds(elements: int) -> dict[str, tuple[float, Callable[[], object]]]:
    """Kind of call -> blocks that all ranks send together, and the call."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    block, room = torch.ones(elements), torch.empty(elements)

    def exchange(into: torch.Tensor) -> None:
        peer = rank ^ 1
        works = dist.irecv(into, peer), dist.isend(block, peer)
        for work in works:
            assert work is not None
            work.wait()

    return {
        "message": (ranks, lambda: exchange(room)),
        "message, into new memory": (ranks, lambda: exchange(torch.empty(elements))),
        "all-reduce": (2 * (ranks - 1), lambda: dist.all_reduce(block)),
    }


def measured(sizes: list[int], rounds: int) -> Costs:
    """Measure all calls in turn; runs on every rank."""
    calls = {
        (size, name): (size * blocks, call)
        for size in sizes
        for name, (blocks, call) in kinds(size * 2**18).items()
    }
    costs: Costs = {key: [] for key in calls}
    for turn in range(rounds + 1):
        for key, (sent, call) in calls.items():
            dist.barrier()
            begin = cpu_seconds()
            for _ in range(CALLS):
                call()
            total = torch.tensor(cpu_seconds() - begin, dtype=torch.float64)
            dist.all_reduce(total)
            if turn:  # the first round warms up
                costs[key].append(1000 * float(total) / CALLS / sent)
    return costs


class CallCost(BenchRow, frozen=True):
    """A kind of call: CPU ms of all ranks for each MiB that is sent."""

    kind: Annotated[str, Column("call")]
    size: Annotated[int, Column("MiB of a block")]
    ranks: int
    by_round: list[float]
    messages: int
    """KiB of the bound, in messages; 0 where none is asked."""
    reduced: int

    @property
    def title(self) -> str:
        return f"{self.ranks} ranks, gloo, CPU ms of all ranks for each MiB sent"

    @property
    def least(self) -> Annotated[float, Column("least", ".3f")]:
        """Of all rounds."""
        return min(self.by_round)

    @property
    def median(self) -> Annotated[float, Column("median", ".3f")]:
        """Of all rounds."""
        return median(self.by_round)

    @classmethod
    def notes(cls, rows: Sequence[CallCost]) -> Iterator[str]:
        """The bound, by the least cost over sizes and rounds."""
        if rows[0].messages and rows[0].reduced:
            message, reduction = (
                min(row.least for row in rows if row.kind.startswith(kind))
                for kind in ("message", "all-reduce")
            )
            sent, reduced = rows[0].messages / 1024 * message, rows[0].reduced / 1024 * reduction
            yield (
                f"messages: at least {sent:.1f} ms; all-reduces: at least {reduced:.1f} ms; "
                f"ratio {sent / reduced:.2f}"
            )


def measure(ranks: int, rounds: int, messages: int, reduced: int) -> list[CallCost]:
    """Measure all calls in one world."""
    costs: Costs = on_ranks(ranks, "benchmarks.message_cost:measured", [1, 2, 8], rounds,
                            as_batch=True)  # fmt: skip
    return [CallCost(kind, size, ranks, by_round, messages, reduced)
            for (size, kind), by_round in costs.items()]  # fmt: skip


def message_cost(
    ranks: int = 4, rounds: int = 8, messages: int = 0, reduced: int = 0
) -> Iterator[Case]:
    yield f"{ranks} ranks", partial(measure, ranks, rounds, messages, reduced)


if __name__ == "__main__":
    bench(message_cost)
