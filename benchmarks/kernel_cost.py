"""CPU of each kind of kernel in a step of one rank, without communication.

    python -m benchmarks.kernel_cost [--plan megatron] [--runs 25]

The model is the GPT of `make bench`, up to its gradients. The other ranks are not there: torch's
fake process group answers for them at once. Each instruction counts with its least time of all
runs, so that other load on the machine matters little.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from time import process_time_ns

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.executor.problem import Problem
from primepar.distributed import Executor, Mesh
from primepar.distributed.runtime.messages import CompiledStep, Frame
from primepar.operators import StepInputs, StepSettings, lower_step
from primepar.plan import PRESETS, preset_plan
from primepar.schedule.program import Compute

PROBLEM, RANKS = "gpt:M=1024,h=192,layers=4", 4


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


def main() -> None:
    """Print the kinds, the most expensive first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plan", choices=list(PRESETS), default="megatron")
    parser.add_argument("--runs", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    executor = executor_of(options.plan)
    by_kind: dict[str, list[float]] = defaultdict(list)
    for step, time in zip(executor.steps, least_times(executor, options.runs), strict=True):
        by_kind[kind(executor, step)].append(time)
    print(f"{PROBLEM} on {RANKS} ranks, {options.plan}, rank 0")
    print(f"{'CPU ms':>8} {'calls':>6}  kind")
    for name, times in sorted(by_kind.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(times):8.2f} {len(times):6}  {name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
