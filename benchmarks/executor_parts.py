"""How much does each part of the executor that saves memory or a copy save, alone?

Rank 0 runs alone, as in `peak_table`: torch's fake group answers for the others, so nothing of gloo
is in it. Every part is turned off by itself. New memory is the most bytes above what is there
before the first step; it is exact. CPU is the least of some steps in which the parts take turns. A
part is kept if it saves 5 % of either on three of the six problems, under one of the plans.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import process_time_ns
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


class ExecutorPartRow(BenchRow, frozen=True):
    """A step without a part over a step with all: new bytes, and CPU."""

    problem: Annotated[str, Column("problem")]
    plan: Annotated[str, Column("plan")]
    without: Annotated[str, Column("without")]
    bytes: int
    bytes_of_all: int
    nanoseconds: int
    nanoseconds_of_all: int

    @property
    def memory(self) -> Annotated[float, Column("new memory", ".2f")]:
        return self.bytes / self.bytes_of_all

    @property
    def cpu(self) -> Annotated[float, Column("CPU", ".2f")]:
        return self.nanoseconds / self.nanoseconds_of_all

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


def measure(problem: Problem, plan: str, steps: int) -> Iterator[ExecutorPartRow]:
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
        least = dict.fromkeys(variants, 1 << 62)
        for _ in range(steps):
            for name, contender in made.items():
                begin = process_time_ns()
                contender.step()
                least[name] = min(least[name], process_time_ns() - begin)
        for name in WITHOUT:
            yield ExecutorPartRow(
                str(problem), plan, name, peaks[name], peaks[""], least[name], least[""]
            )
    finally:
        dist.destroy_process_group()


def executor_parts(
    plan: tuple[str, ...] = ("primepar", "megatron", "megatron-sp", "data"), steps: int = 5
) -> Iterator[Case]:
    os.environ["KINETO_LOG_LEVEL"] = "99"
    torch.set_num_threads(1)
    for problem in PROBLEMS:
        for name in plan:
            yield f"{problem}, {name}", partial(measure, problem, name, steps)


if __name__ == "__main__":
    bench(executor_parts)
