"""How much does each part of the executor that saves memory or a copy save, alone?

Rank 0 runs alone, as in `peak_table`: torch's fake group answers for the others, so nothing of gloo
is in it. Every part is turned off by itself. New memory is the most bytes above what is there
before the first step; it is exact. CPU and wall are the least of some turns of several steps, in
which all parts take turns. A part is kept if it saves 5 % of memory or CPU on three of the six
problems, under one of the plans.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter_ns, process_time_ns
from typing import Annotated
from unittest.mock import patch

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.bench import BenchRow, Case, Column, bench
from benchmarks.contenders import Contender, makers, planned
from benchmarks.executor import peak_of, two_steps
from benchmarks.problem import PROBLEMS, Problem
from primepar.distributed.runtime import compiler, computes
from primepar.distributed.runtime.memory_places import MemoryPlaces

WITHOUT: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "results in the memory of an operand": lambda: patch.object(computes, "IN_PLACE", {}),
    "parts made in the memory of their whole": lambda: patch.object(
        compiler, "later_joins", lambda *of: {}
    ),
    "parts that stay in the memory of their whole": lambda: patch.object(
        MemoryPlaces, "_end_together", lambda *of: False
    ),
}
"""What is turned off -> a context in which programs are compiled without it."""
NEEDED = 0.05
TURN, MOST = 100_000_000, 100
"""Nanoseconds that a turn should last at least, and the most steps in it."""


class ExecutorPartRow(BenchRow, frozen=True):
    """A step without a part over a step with all: new bytes, CPU and wall time."""

    problem: Annotated[str, Column("problem")]
    plan: Annotated[str, Column("plan")]
    without: Annotated[str, Column("without")]
    bytes: int
    bytes_of_all: int
    nanoseconds: tuple[int, int]
    """CPU and wall."""
    nanoseconds_of_all: tuple[int, int]

    @property
    def memory(self) -> Annotated[float, Column("new memory", ".2f")]:
        return self.bytes / self.bytes_of_all

    @property
    def cpu(self) -> Annotated[float, Column("CPU", ".2f")]:
        return self.nanoseconds[0] / self.nanoseconds_of_all[0]

    @property
    def wall(self) -> Annotated[float, Column("wall", ".2f")]:
        return self.nanoseconds[1] / self.nanoseconds_of_all[1]

    @classmethod
    def notes(cls, rows: list[ExecutorPartRow]) -> Iterator[str]:  # type: ignore[override]
        for part in WITHOUT:
            saved = {
                name: {
                    row.problem for row in rows
                    if row.without == part and getattr(row, name) >= 1 + NEEDED
                }
                for name in ("memory", "cpu")
            }  # fmt: skip
            either = len(saved["memory"] | saved["cpu"])
            yield (
                f"{part}: at least {NEEDED:.0%} of memory on {len(saved['memory'])} problems, of "
                f"CPU on {len(saved['cpu'])}, of either on {either}"
            )


def _took(contender: Contender, steps: int) -> tuple[int, int]:
    """CPU and wall nanoseconds of some steps."""
    cpu, wall = process_time_ns(), perf_counter_ns()
    for _ in range(steps):
        contender.step()
    return process_time_ns() - cpu, perf_counter_ns() - wall


def measure(problem: Problem, plan: str, turns: int) -> Iterator[ExecutorPartRow]:
    """The rows of one problem and plan."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=problem.ranks)
    try:
        plans = planned(problem.model, problem.ranks, problem.batch, problem.operators, [plan])
        if not plans.parts:
            return
        make = makers(problem, plans)[plan]
        variants = {"": nullcontext, **WITHOUT}
        peaks, made = {}, dict[str, Contender]()
        for name, context in variants.items():
            with context():
                peaks[name] = peak_of(partial(two_steps, make))
                made[name] = make()
                made[name].step()  # compiles
        steps = max(1, min(MOST, TURN // _took(made[""], 1)[0]))
        took: dict[str, list[tuple[int, int]]] = {name: [] for name in variants}
        for _ in range(turns):
            for name, contender in made.items():
                took[name].append(_took(contender, steps))
        least = {
            name: (min(c for c, _ in pairs), min(w for _, w in pairs))
            for name, pairs in took.items()
        }
        for name in WITHOUT:
            yield ExecutorPartRow(
                str(problem), plan, name, peaks[name], peaks[""], least[name], least[""]
            )
    finally:
        dist.destroy_process_group()


def executor_parts(
    plan: tuple[str, ...] = ("primepar", "megatron", "megatron-sp", "data"), turns: int = 5
) -> Iterator[Case]:
    os.environ["KINETO_LOG_LEVEL"] = "99"
    torch.set_num_threads(1)
    for problem in PROBLEMS:
        for name in plan:
            yield f"{problem}, {name}", partial(measure, problem, name, turns)


if __name__ == "__main__":
    bench(executor_parts)
