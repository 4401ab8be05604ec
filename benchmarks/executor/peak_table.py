"""Where the bytes are at the peak of a step: the blocks that are live then.

Rank 0 runs alone: torch's fake group answers for the others, so one process is enough and nothing
of gloo is in it. Every instruction is marked in the profile that counts memory.

    python -m benchmarks.executor.peak_table --problem gpt:M=1024,h=192,layers=4 [--plan NAME]
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.executor.cases import makers
from benchmarks.executor.memory import BEGIN, bytes_of
from benchmarks.executor.model_program import ModelProgram
from benchmarks.executor.part_program import PartProgram
from benchmarks.executor.planned import planned
from benchmarks.executor.problem import Problem
from benchmarks.executor.report import aligned
from primepar.distributed.runtime.messages import Action
from primepar.passes.block_uses import Rank
from primepar.passes.liveness import sizes_of
from primepar.schedule.effects import initial_blocks
from primepar.schedule.program import Compute, Program

Ours = ModelProgram | PartProgram
MARK = "instruction "
MOST = 12
"""Tensors that are listed."""
PLANS = ["primepar", "stationary", "megatron-sp", "data"]


class Peak(NamedTuple):
    """The largest sum of new bytes, and the instruction that runs then: program and position."""

    bytes: int
    program: int
    place: int


def main() -> None:
    """Print the peak of every plan, and what is live then."""
    options = parser().parse_args()
    try:
        problem = Problem.parse(options.problem, options.ranks)
    except ValueError as error:
        parser().error(f"--problem: {error}")
    os.environ["KINETO_LOG_LEVEL"] = "99"
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=problem.ranks)
    plans = planned(
        problem.model, problem.ranks, problem.batch, problem.operators, options.plan or PLANS
    )
    contenders = makers(problem, plans, False)
    print(problem)
    for part in plans.parts:
        print(report(part.name, contenders[part.name]))  # type: ignore[arg-type]
    for name, why in plans.left_out.items():
        print(f"left out {name}: {why}")


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.executor.peak_table",
        description=(__doc__ or "").partition("\n")[0],
    )
    options.add_argument("--problem", metavar="TEXT", default="gpt:M=1024,h=192,layers=4")
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--plan", action="append", default=[], metavar="NAME", help="a preset")
    return options


def report(name: str, make: Callable[[], Ours]) -> str:
    """The peak of a plan, and the tensors whose blocks are live then."""
    contender, peak = measured(make)
    program = programs(contender)[peak.program]
    node = program.programs[0][peak.place]
    what = node.phase or "sum" if isinstance(node, Compute) else type(node).__name__
    rows = [
        ["new bytes at the peak", kib(peak.bytes)],
        ["  at instruction", f"{peak.place} of {len(program.programs[0])}, {what}"],
        ["live blocks there, given ones too:", "KiB"],
        *([f"  {tensor}", kib(size)] for tensor, size in largest(program, peak.place)),
    ]
    return "\n".join([name, *aligned(rows)])


def kib(size: int) -> str:
    """Bytes as text."""
    return f"{size / 1024:,.0f}"


def programs(contender: Ours) -> list[Program]:
    """The programs of a contender, in the order of its executors."""
    if isinstance(contender, PartProgram):
        return [contender.part.forward, contender.part.backward]
    return [contender.model._program(contender.tokens, "gradients").program]


def largest(program: Program, place: int) -> Iterator[tuple[str, int]]:
    """The tensors with the most live bytes at an instruction, those of all layers together."""
    size, rank, sums = sizes_of(program), Rank(0), Counter[str]()
    live = dict.fromkeys(initial_blocks(program)[0])
    for position, node in enumerate(program.programs[0][: place + 1]):
        used = rank.touched(node)
        live |= dict.fromkeys(used.made)
        for name in used.gone if position < place else ():
            live.pop(name, None)
    for name in live:
        tensor = re.sub(r"blocks\.\d+\.", "", name.partition("[")[0])
        sums[tensor] += 4 * (size(name) or 0)
    yield from sums.most_common(MOST)
    rest = sums.total() - sum(count for _, count in sums.most_common(MOST))
    yield "all others", rest


def measured(make: Callable[[], Ours]) -> tuple[Ours, Peak]:
    """Run two steps, and find the peak as the benchmark does."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        contender = make()
        resident = bytes_of(contender.resident())
        for number, run in enumerate(contender.executors()):
            run.precede(partial(_mark, number))
        with record_function(BEGIN):
            pass
        contender.step()
        contender.step()
    profiler = recorded.profiler
    assert profiler is not None
    assert profiler.kineto_results is not None
    events = sorted(
        (event.start_ns(), event.name(), event.nbytes())
        for event in profiler.kineto_results.events()
        if event.name().startswith((BEGIN, MARK, "[memory]"))
    )
    return contender, _peak(events, resident)


def _mark(number: int, place: int) -> Action:
    """A mark before an instruction of a program."""

    def mark(frame: object) -> None:
        with record_function(f"{MARK}{number} {place}"):
            pass

    return mark


def _peak(events: Iterable[tuple[int, str, int]], resident: int) -> Peak:
    live, begun, peak, number, place = 0, False, Peak(0, 0, 0), 0, 0
    for _, name, allocated in events:
        begun = begun or name == BEGIN
        if name.startswith(MARK):
            number, place = map(int, name.removeprefix(MARK).split())
        elif name != BEGIN:
            live += allocated
        if begun and live - resident > peak.bytes:
            peak = Peak(live - resident, number, place)
    return peak


if __name__ == "__main__":
    main()
