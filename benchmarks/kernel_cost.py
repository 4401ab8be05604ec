"""What does each kind of kernel take in a step of one rank, without communication?

The model is the GPT of `make bench`, up to its gradients. The other ranks are not there: torch's
fake process group answers for them at once. Each instruction counts with its least CPU time of all
runs, so that other load on the machine matters little. Calls are those of torch's operators that
read or write elements, and bytes are the sizes of their operands and results. With `--ranks 1`
there is a line for the same model in plain torch, which is called without being timed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import process_time_ns
from typing import Annotated, Any

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.bench import BenchRow, Case, Column, bench
from benchmarks.problem import PlainGpt, Problem, cross_entropy
from primepar.distributed import Executor, Mesh
from primepar.distributed.runtime.running import CompiledStep, Frame
from primepar.models import ModelConfig
from primepar.operators import StepInputs, StepSettings, lower_step
from primepar.plan import preset_plan
from primepar.schedule.program import Compute

PROBLEM, RANKS = "gpt:M=1024,h=192,layers=4", 4
UNTOUCHED = ("view", "_unsafe_view", "alias", "as_strided", "slice", "select", "unsqueeze",
             "squeeze", "t", "transpose", "expand", "split", "unbind", "permute", "detach", "empty",
             "new_empty", "empty_like", "empty_strided", "lift_fresh")  # fmt: skip
"""Operators that touch no element: views, and new memory."""
PLAIN = "plain torch, all kinds"


class AtenCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls of torch's operators, and the bytes of what they read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::") not in UNTOUCHED:
            self.calls += 1
            tensors = (x for x in tree_leaves((args, kwargs, made)) if isinstance(x, torch.Tensor))
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return made


class KernelRow(BenchRow, frozen=True):
    """A kind of kernels, or of instructions: CPU milliseconds of all calls in a step."""

    plan: str
    ranks: int
    kind: Annotated[str, Column("kind")]
    milliseconds: Annotated[float | None, Column("CPU ms", ".2f")]
    count: Annotated[int, Column("instructions")]
    calls: Annotated[int, Column("torch calls")]
    bytes: Annotated[int, Column("MiB", ".1f", 2**-20)]

    @property
    def title(self) -> str:
        return f"{PROBLEM} on {self.ranks} ranks, {self.plan}, rank 0"


@contextmanager
def executor_of(
    plan_name: str, model: ModelConfig, batch: int, ranks: int = RANKS
) -> Iterator[Executor]:
    """The compiled step of rank 0 in a world whose other ranks are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        plan = preset_plan(plan_name, model, ranks)
        program = lower_step(plan, batch, model.context, "gradients")
        settings = StepSettings(model, batch, model.context)
        yield Executor(Mesh(plan.sequence("head")), program, settings)
    finally:
        dist.destroy_process_group()


def rows_of(executor: Executor, plan: str, runs: int) -> list[KernelRow]:
    """The kinds, the most expensive first."""
    blocks = {}
    for name in executor.initial:
        shape = executor.shapes.shape(name)
        numbers = name.startswith(("tokens", "targets"))
        blocks[name] = torch.randint(0, 60, shape) if numbers else 0.02 * torch.randn(shape)
    least = [float("inf")] * len(executor.steps)
    counts = [AtenCounter() for _ in executor.steps]
    for run in range(runs + 1):
        frame = Frame(dict(blocks), StepInputs(), None)
        executor.bind(frame.blocks)
        with torch.no_grad():
            for number, step in enumerate(executor.steps):
                if run == runs:  # the last one: kernels have filled their caches
                    with counts[number]:
                        step.run(frame)
                    continue
                begin = process_time_ns()
                step.run(frame)
                least[number] = min(least[number], (process_time_ns() - begin) / 1e6)
    by_kind: dict[str, list[int]] = defaultdict(list)
    for number, step in enumerate(executor.steps):
        by_kind[kind(executor, step)].append(number)
    rows = [
        KernelRow(
            plan,
            executor.mesh.ranks,
            name,
            sum(least[number] for number in numbers),
            len(numbers),
            sum(counts[number].calls for number in numbers),
            sum(counts[number].bytes for number in numbers),
        )
        for name, numbers in by_kind.items()
    ]
    return sorted(rows, key=lambda row: -(row.milliseconds or 0.0))


def kind(executor: Executor, step: CompiledStep) -> str:
    """The kernels of a compiled step, or its instruction."""
    phases = executor.shapes.meaning.phases
    names = []
    for node in step.instructions:
        known = phases.get(str(node.phase)) if isinstance(node, Compute) else None
        names.append(str(known.kernel) if known else str(node.__struct_config__.tag))
    return " + ".join(names) or "end"


def plain_row(model: ModelConfig, batch: int, plan: str) -> KernelRow:
    """Forward and backward of the model in plain torch."""
    module, counted = PlainGpt(model), AtenCounter()
    tokens = torch.randint(0, model.vocabulary, (batch, model.context))
    for _ in range(2):  # the first one makes the gradients
        module.zero_grad(set_to_none=True)
        counted.calls = counted.bytes = 0
        with counted:
            cross_entropy(module(tokens), tokens).backward()  # type: ignore[no-untyped-call]
    return KernelRow(plan, 1, PLAIN, None, 1, counted.calls, counted.bytes)


def measure(plan: str, ranks: int, runs: int) -> list[KernelRow]:
    """The table of one plan."""
    torch.set_num_threads(1)
    problem = Problem.parse(PROBLEM, ranks)
    model, batch = problem.model, problem.batch
    with executor_of(plan, model, batch, ranks) as executor:
        rows = rows_of(executor, plan, runs)
    rows = [row for row in rows if row.calls]
    total = KernelRow(plan, ranks, "all kinds", sum(row.milliseconds or 0.0 for row in rows),
                      *(sum(getattr(row, name) for row in rows)
                        for name in ("count", "calls", "bytes")))  # fmt: skip
    return [*rows, total, *([plain_row(model, batch, plan)] if ranks == 1 else [])]


def kernel_cost(plan: str = "megatron", ranks: int = RANKS, runs: int = 25) -> Iterator[Case]:
    yield f"{plan} on {ranks}", partial(measure, plan, ranks, runs)


if __name__ == "__main__":
    bench(kernel_cost)
