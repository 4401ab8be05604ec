"""How much CPU does each kind of kernel take in a step of one rank, without communication?

The model is the GPT of `make bench`, up to its gradients. The other ranks are not there: torch's
fake process group answers for them at once. Each instruction counts with its least time of all
runs, so that other load on the machine matters little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from time import process_time_ns
from typing import Annotated

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.bench import BenchRow, Case, Column, bench
from benchmarks.problem import Problem
from primepar.distributed import Executor, Mesh
from primepar.distributed.runtime.messages import CompiledStep, Frame
from primepar.operators import StepInputs, StepSettings, lower_step
from primepar.plan import preset_plan
from primepar.schedule.program import Compute

PROBLEM, RANKS = "gpt:M=1024,h=192,layers=4", 4


class KernelRow(BenchRow, frozen=True):
    """A kind of kernels, or of instructions: CPU milliseconds of all calls in a step."""

    plan: str
    kind: Annotated[str, Column("kind")]
    milliseconds: Annotated[float, Column("CPU ms", ".2f")]
    calls: Annotated[int, Column("calls")]

    @property
    def title(self) -> str:
        return f"{PROBLEM} on {RANKS} ranks, {self.plan}, rank 0"


def executor_of(plan_name: str) -> Executor:
    """The compiled step of rank 0."""
    problem = Problem.parse(PROBLEM, RANKS)
    model = problem.model
    plan = preset_plan(plan_name, model, RANKS)
    program = lower_step(plan, problem.batch, model.context, "gradients")
    settings = StepSettings(model, problem.batch, model.context)
    return Executor(Mesh(plan.sequence("head")), program, settings)


def least_times(executor: Executor, runs: int) -> list[float]:
    """The least CPU milliseconds of every compiled step."""
    blocks = {}
    for name in executor.initial:
        shape = executor.shapes.shape(name)
        numbers = name.startswith(("tokens", "targets"))
        blocks[name] = torch.randint(0, 60, shape) if numbers else 0.02 * torch.randn(shape)
    least = [float("inf")] * len(executor.steps)
    for _ in range(runs):
        frame = Frame(dict(blocks), StepInputs(), None)
        executor.bind(frame.blocks)
        with torch.no_grad():
            for number, step in enumerate(executor.steps):
                begin = process_time_ns()
                step.run(frame)
                least[number] = min(least[number], (process_time_ns() - begin) / 1e6)
    return least


def kind(executor: Executor, step: CompiledStep) -> str:
    """The kernels of a compiled step, or its instruction."""
    phases = executor.shapes.meaning.phases
    names = []
    for node in step.instructions:
        known = phases.get(str(node.phase)) if isinstance(node, Compute) else None
        names.append(str(known.kernel) if known else str(node.__struct_config__.tag))
    return " + ".join(names) or "end"


def measure(plan: str, runs: int) -> list[KernelRow]:
    """The kinds, the most expensive first."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    executor = executor_of(plan)
    by_kind: dict[str, list[float]] = defaultdict(list)
    for step, time in zip(executor.steps, least_times(executor, runs), strict=True):
        by_kind[kind(executor, step)].append(time)
    dist.destroy_process_group()
    dearest = sorted(by_kind.items(), key=lambda item: -sum(item[1]))
    return [KernelRow(plan, name, sum(times), len(times)) for name, times in dearest]


def kernel_cost(plan: str = "megatron", runs: int = 25) -> Iterator[Case]:
    yield plan, partial(measure, plan, runs)


if __name__ == "__main__":
    bench(kernel_cost)
