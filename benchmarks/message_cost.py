"""CPU that gloo takes for each MiB of a message and of an all-reduce: what no executor can save.

    python -m benchmarks.message_cost [--ranks 4] [--rounds 8]
    python -m benchmarks.message_cost --messages 442368 --reduced 196608

The second form also prints a bound: CPU of `--messages` KiB, sent in messages, over that of
`--reduced` KiB, sent in all-reduces. Both are bytes of all ranks in a step, as in the tables of
`make bench`. All ranks run under SCHED_BATCH; the calls take turns in every round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import torch
from torch import distributed as dist

from benchmarks.executor.processes import on_ranks
from benchmarks.executor.rounds import cpu_seconds

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


def least(costs: Costs, kinds_of_call: str) -> float:
    """The least CPU ms for each MiB, over sizes and rounds, of calls whose name starts so."""
    return min(
        min(by_round) for (_, name), by_round in costs.items() if name.startswith(kinds_of_call)
    )


def main() -> None:
    """Print the table, and the bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--messages", type=float, help="KiB of all ranks")
    parser.add_argument("--reduced", type=float, help="KiB of all ranks")
    options = parser.parse_args()
    costs: Costs = on_ranks(options.ranks, measured, [1, 2, 8], options.rounds, as_batch=True)
    print(f"{options.ranks} ranks, gloo, CPU ms of all ranks for each MiB sent")
    print(f"{'MiB of a block':16} {'call':26} {'least':>8} {'median':>8}")
    for (size, name), by_round in costs.items():
        print(f"{size:<16} {name:26} {min(by_round):8.3f} {median(by_round):8.3f}")
    if options.messages and options.reduced:
        message, reduction = least(costs, "message"), least(costs, "all-reduce")
        sent, reduced = options.messages / 1024 * message, options.reduced / 1024 * reduction
        print(f"messages: at least {sent:.1f} ms; all-reduces: at least {reduced:.1f} ms; ", end="")
        print(f"ratio {sent / reduced:.2f}")


if __name__ == "__main__":
    main()
