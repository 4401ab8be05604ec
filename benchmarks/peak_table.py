"""Where are the bytes at the peak of a step: the blocks that are live then?

Rank 0 runs alone: torch's fake group answers for the others, so one process is enough and nothing
of gloo is in it. Every instruction is marked in the profile that counts memory.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import distributed as dist
from torch.profiler import record_function
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.bench import BenchRow, Case, Column, bench
from benchmarks.contenders import Ours, PartProgram, makers, planned
from benchmarks.executor import BEGIN, recorded, two_steps
from benchmarks.problem import Problem
from primepar.distributed.runtime.running import Action
from primepar.passes.block_uses import Rank
from primepar.passes.liveness import sizes_of
from primepar.schedule.effects import initial_blocks
from primepar.schedule.program import Compute, Program

MARK = "instruction "
MOST = 12
"""Tensors that are listed."""


class Peak(NamedTuple):
    """The largest sum of new bytes, and the instruction that runs then: program and position."""

    bytes: int
    program: int
    place: int


class PeakRow(BenchRow, frozen=True):
    """What there is at the peak of a plan: KiB, or an instruction."""

    plan: str
    what: Annotated[str, Column("at the peak")]
    there: Annotated[str, Column("KiB")]

    @property
    def title(self) -> str:
        return self.plan


def peak_rows(name: str, make: Callable[[], Ours]) -> Iterator[PeakRow]:
    """The peak of a plan, and the tensors whose blocks are live then."""
    contender, peak = measured(make)
    program = programs(contender)[peak.program]
    node = program.programs[0][peak.place]
    what = node.phase or "sum" if isinstance(node, Compute) else type(node).__name__
    of_all = f"{peak.place} of {len(program.programs[0])}, {what}"
    for label, there in (
        ("new bytes", kib(peak.bytes)),
        ("  at instruction", of_all),
        *((f"live, given ones too: {tensor}", kib(size))
          for tensor, size in largest(program, peak.place)),
    ):  # fmt: skip
        yield PeakRow(name, label, there)


def kib(size: int) -> str:
    """Bytes as text."""
    return f"{size / 1024:,.0f}"


def peak_table(
    problem: str = "gpt:M=1024,h=192,layers=4",
    ranks: int = 4,
    plan: tuple[str, ...] = ("primepar", "stationary", "megatron-sp", "data"),
) -> Iterator[Case]:
    os.environ["KINETO_LOG_LEVEL"] = "99"
    torch.set_num_threads(1)
    one = Problem.parse(problem, ranks)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    plans = planned(one.model, ranks, one.batch, one.operators, list(plan))
    made = makers(one, plans)
    for part in plans.parts:
        yield part.name, partial(peak_rows, part.name, made[part.name])  # type: ignore[arg-type]
    for name, why in plans.left_out.items():
        yield name, partial(PeakRow, name, "left out", why)


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
    made: list[Ours] = []

    def marked() -> Ours:
        made.append(make())
        for number, run in enumerate(made[0].executors()):
            run.precede(partial(_mark, number))
        return made[0]

    resident, events = recorded(partial(two_steps, marked), MARK)
    return made[0], _peak(events, resident)


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
    bench(peak_table)
