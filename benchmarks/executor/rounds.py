"""Times contenders on the ranks of one world, in interleaved rounds."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Sequence

import torch
from msgspec import Struct
from torch import distributed as dist

from benchmarks.executor.contender import Contender

SECONDS = 0.15
"""Wall seconds that the repetitions of a round should take at least."""
MOST = 200


class Timed(Struct, frozen=True):
    """Seconds of a step of one contender, one entry a round.

    `cpu` is user and system time of all ranks, with every thread. `wall` is that of the slowest.
    """

    name: str
    repetitions: int
    cpu: list[float]
    wall: list[float]


def timed(contenders: Sequence[Contender], rounds: int) -> list[Timed]:
    """Run every contender in each round, in an order that changes; a collective call."""
    order = random.Random(0)
    repetitions = [_repetitions(contender) for contender in contenders]
    cpu, wall = (torch.zeros(len(contenders), rounds, dtype=torch.float64) for _ in range(2))
    for turn in range(rounds):
        for place in order.sample(range(len(contenders)), len(contenders)):
            count = repetitions[place]
            seconds = _seconds(contenders[place], count)
            cpu[place, turn], wall[place, turn] = (part / count for part in seconds)
    dist.all_reduce(cpu)
    dist.all_reduce(wall, dist.ReduceOp.MAX)
    return [
        Timed(contender.name, count, of_cpu, of_wall)
        for contender, count, of_cpu, of_wall in zip(
            contenders, repetitions, cpu.tolist(), wall.tolist(), strict=True
        )
    ]


def _seconds(contender: Contender, count: int) -> tuple[float, float]:
    """CPU and wall seconds of this rank, between two barriers that are not counted."""
    dist.barrier()
    begin, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(count):
        contender.step()
    used = cpu_seconds() - cpu, time.perf_counter() - begin
    dist.barrier()
    return used


def cpu_seconds() -> float:
    """User and system time of this process, with all of its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _repetitions(contender: Contender) -> int:
    """Steps a round, the same on every rank; the first steps warm up."""
    contender.step()
    slowest = torch.tensor(_seconds(contender, 1)[1])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(1, min(MOST, int(SECONDS / float(slowest))))
