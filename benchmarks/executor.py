"""Is the executor cheaper than DTensor, Megatron by hand, and how far above a floor, over gloo?

All contenders of a problem run in one world, in interleaved rounds, checked against float64. CPU
seconds are user and system time summed over ranks. A score is the median over rounds of a
contender's seconds above the floor, over DTensor's, with a 95% interval by a bootstrap over rounds.
New memory is what torch's allocator gives out above a contender's input and weights: the profiler
reports every allocation, in the threads of gloo too, from before a contender is made until after
its second step. Buffers inside gloo and the blocks that malloc keeps are not seen.

    python -m benchmarks executor --problem mlp:M=8192,h=512 --ranks 4 --plan megatron --batch
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from statistics import median
from typing import Annotated, Any

import torch
from msgspec import Struct
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bench import BenchRow, Case, Cells, Column, bench, cpu_seconds, in_columns
from benchmarks.contenders import (
    Contender,
    ListFacts,
    Planned,
    check,
    makers,
    planned,
    sent_by_program,
)
from benchmarks.problem import PROBLEMS, Problem
from benchmarks.scores import Score, above_floor, step_ratio
from benchmarks.world import on_ranks

FLOOR, REFERENCE, MEMORY_REFERENCE = "floor:", "dtensor", "dtensor-sp"


# The rows, and what they are held to


class ContenderRow(BenchRow, frozen=True, kw_only=True):
    """One contender of a problem: seconds of a step in every round, and what a step needs.

    `cpu` is user and system time of all ranks; `wall` is that of the slowest rank. `peak` are the
    bytes of new memory on the fullest rank, `sent` the bytes that all ranks send.
    """

    problem: str
    floor: str
    """The cheaper one of the products without communication."""
    name: str
    cpu: list[float]
    wall: list[float]
    peak: int
    sent: float
    collectives: int
    facts: ListFacts | None
    """Of a preset of the library: of its program."""
    above: Score
    """CPU seconds above the floor, over DTensor's."""
    of_step: Score
    """CPU seconds of the step, over DTensor's."""
    of_wall: Score
    of_memory: float
    """Over DTensor with sequence parallelism."""

    @property
    def title(self) -> str:
        return f"{self.problem}; floor: {self.floor}"

    @property
    def cells(self) -> Cells:
        facts = self.facts
        return {
            "contender": self.name,
            "CPU ms: min": f"{1e3 * min(self.cpu):.2f}",
            "median": f"{1e3 * median(self.cpu):.2f}",
            "above floor / DTensor": self.above,
            "wall ms: min": f"{1e3 * min(self.wall):.2f}",
            "median ": f"{1e3 * median(self.wall):.2f}",
            "/ DTensor": self.of_wall,
            "new KiB": f"{self.peak / 1024:,.0f}",
            "/ DTensor-SP": f"{self.of_memory:.2f}",
            "sent KiB": f"{self.sent / 1024:,.0f}",
            "messages": facts.messages if facts else "",
            "collectives": facts.collectives if facts else self.collectives,
            "waits": facts.waits if facts else "",
        }

    @classmethod
    def notes(cls, rows: Sequence[ContenderRow]) -> Iterator[str]:
        known = list(targets(rows))
        if known:
            yield from ("", *in_columns([[*known[0]], *([*line.values()] for line in known)]))


class LeftOut(BenchRow, frozen=True):
    """A preset that does not fit a problem."""

    problem: str
    plan: Annotated[str, Column("plan")]
    why: Annotated[str, Column("why")]

    @property
    def title(self) -> str:
        return f"{self.problem}: left out"


Metric = Callable[[ContenderRow, ContenderRow], Score]
METRICS: dict[str, Metric] = {
    "CPU above the floor": lambda row, _: row.above,
    "CPU of a step": lambda row, _: row.of_step,
    "wall": lambda row, _: row.of_wall,
    "new memory": lambda row, _: Score.exact(row.of_memory),
    "CPU over the same by others": lambda row, other: step_ratio(row.cpu, other.cpu),
    "wall over the same by others": lambda row, other: step_ratio(row.wall, other.wall),
    "new memory over the same by others": lambda row, other: Score.exact(row.peak / other.peak),
    "sent over the same by others": lambda row, other: Score.exact(row.sent / other.sent),
}
"""Of a preset, and of the same partition by others, where there is one."""
ABOVE, STEP, WALL, MEMORY, *TO_OTHERS = METRICS
OTHERS = {"megatron-sp": "megatron-sp by hand", "data": "ddp"}
"""Preset -> the contender with the same partition."""
BEST = "best plan"
LARGE, WIDE, SMALL = ("mlp:M=4096,h=512 on 16", "mlp:M=8192,h=512 on 4", "mlp:M=64,h=64 on 4")
GPT = "gpt:M=1024,h=192,layers=4 on 4"
TARGETS = (
    (LARGE, ABOVE, BEST, 0.45),
    (WIDE, ABOVE, BEST, 0.60),
    (WIDE, ABOVE, "primepar", 1.0),
    (SMALL, ABOVE, "stationary", 0.45),
    (SMALL, ABOVE, "megatron", 0.45),
    (SMALL, ABOVE, "primepar", 0.8),
    (GPT, STEP, BEST, 0.6),
    (GPT, STEP, "primepar", 0.8),
    ("", WALL, BEST, 1.0),
    ("", MEMORY, BEST, 0.7),
    ("", MEMORY, "primepar", 1.0),
    *(("", metric, plan, 1.0) for plan in OTHERS for metric in TO_OTHERS),
)
"""Start of a problem's name, metric, plan, and the limit: a ratio to DTensor, or to the plan by
others, by the upper end of its interval. Where any plan may meet a target, the one with the lowest
upper end counts."""


def targets(rows: Iterable[ContenderRow]) -> Iterator[dict[str, str]]:
    """The targets of the problems that were measured, with `met` or `missed`."""
    by_problem: dict[str, dict[str, ContenderRow]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, {})[row.name] = row
    for start, metric, plan, limit in TARGETS:
        for problem, named in by_problem.items():
            asked = [row for row in named.values() if row.facts and plan in (BEST, row.name)]
            if asked and problem.startswith(start):
                other = named[OTHERS[plan]] if metric in TO_OTHERS else asked[0]
                scores = [(METRICS[metric](row, other), row) for row in asked]
                score, best = min(scores, key=lambda pair: pair[0].high)
                yield {
                    "problem": problem,
                    "metric": metric,
                    "wanted of": plan,
                    "limit": f"<= {limit:.2f}",
                    "plan": best.name,
                    "measured": str(score),
                    "result": "met" if score.high <= limit else "missed",
                }


# The measurement, on every rank of one world


class Measured(Struct, frozen=True):
    """What one world measured, by contender: seconds in every round, bytes."""

    cpu: dict[str, list[float]]
    wall: dict[str, list[float]]
    peaks: dict[str, int]
    sent: dict[str, tuple[int, float]]
    """Calls of collectives on all ranks, and bytes of all ranks."""


def measure(problem: Problem, plans: Planned, rounds: int) -> Measured:
    """Check, time and then count every contender; runs on every rank."""
    expected = None if dist.get_rank() else problem.expected()
    all_makers = makers(problem, plans)
    contenders = {name: make() for name, make in all_makers.items()}
    for name, contender in contenders.items():
        if not name.startswith(FLOOR):
            check(contender, expected)
    cpu, wall = timed(list(contenders.values()), rounds)
    sent = {name: sent_by(contender) for name, contender in contenders.items()}
    contenders.clear()
    peaks = {name: peak_new_bytes(make) for name, make in all_makers.items()}
    return Measured(
        dict(zip(all_makers, cpu, strict=True)), dict(zip(all_makers, wall, strict=True)), peaks,
        sent,
    )  # fmt: skip


SECONDS, MOST = 0.15, 200
"""Wall seconds that the repetitions of a round should take at least, and the most of them."""


def timed(contenders: Sequence[Contender], rounds: int) -> tuple[list[list[float]], ...]:
    """CPU seconds of all ranks and wall seconds of the slowest one, by contender and round.

    Every contender runs in each round, in an order that changes. A collective call.
    """
    order = random.Random(0)
    counts = []
    for contender in contenders:
        contender.step()  # the first steps warm up
        slowest = torch.tensor(_seconds(contender, 1)[1])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        counts.append(max(1, min(MOST, int(SECONDS / float(slowest)))))
    cpu, wall = (torch.zeros(len(contenders), rounds, dtype=torch.float64) for _ in range(2))
    for turn in range(rounds):
        for place in order.sample(range(len(contenders)), len(contenders)):
            seconds = _seconds(contenders[place], counts[place])
            cpu[place, turn], wall[place, turn] = (part / counts[place] for part in seconds)
    dist.all_reduce(cpu)
    dist.all_reduce(wall, dist.ReduceOp.MAX)
    return cpu.tolist(), wall.tolist()


def _seconds(contender: Contender, count: int) -> tuple[float, float]:
    """CPU and wall seconds of this rank, between two barriers that are not counted."""
    dist.barrier()
    begin, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(count):
        contender.step()
    used = cpu_seconds() - cpu, time.perf_counter() - begin
    dist.barrier()
    return used


class CollectiveCounter(TorchDispatchMode):
    """Counts collectives that torch starts on one rank, and their bytes, as rings send them."""

    passes = {"all_reduce": 2, "allreduce": 2, "all_gather": 1, "allgather": 1, "reduce_scatter": 1}
    """Start of an operator's name -> how many times a ring carries the full tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.sent = 0, Fraction(0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # its own operators on local tensors come next
        result = func(*args, **(kwargs or {}))
        space, _, name = func._schema.name.partition("::")
        for start, passes in self.passes.items() if "c10d" in space else ():
            if name.lstrip("_").startswith(start):
                ranks = dist.get_world_size()
                whole = max(_bytes(args), _bytes(result))
                self.calls += 1
                self.sent += Fraction(passes * (ranks - 1) * whole, ranks)
        return result


def _bytes(values: Any) -> int:
    """Bytes of the largest tensor in nested values."""
    if isinstance(values, torch.Tensor):
        return values.nbytes
    return max(map(_bytes, values), default=0) if isinstance(values, list | tuple) else 0


def sent_by(contender: Contender) -> tuple[int, float]:
    """What a step sends: a program counts its messages, others are counted. A collective call."""
    calls, sent = 0, sent_by_program(contender)
    if sent is None:
        with CollectiveCounter() as counter:
            contender.step()
        calls, sent = counter.calls, float(counter.sent)
    sums = torch.tensor([calls, sent], dtype=torch.float64)
    dist.all_reduce(sums)
    return int(sums[0]), float(sums[1])


# New memory

BEGIN = "steps begin"
TIMES = 3
"""Peaks of a contender, of which the median counts: gloo frees what it has sent a little later."""


def peak_new_bytes(make: Callable[[], Contender]) -> int:
    """The largest peak of all ranks, in bytes, the median of some; a collective call."""
    peaks = []
    for _ in range(TIMES):
        peak = torch.tensor(peak_of(partial(two_steps, make)))
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        peaks.append(int(peak))
    return int(median(peaks))


def two_steps(make: Callable[[], Contender]) -> int:
    """Make a contender and run it twice; its bytes from the start, which are not new."""
    contender = make()
    resident = sum(tensor.nbytes for tensor in contender.resident())
    with record_function(BEGIN):
        pass
    contender.step()
    contender.step()
    return resident


def peak_of(work: Callable[[], int]) -> int:
    """The most bytes that exist after `BEGIN` of what `work` allocates, less what it returns."""
    resident, events = recorded(work)
    return peak_after_begin(events) - resident


def recorded(work: Callable[[], int]) -> tuple[int, list[tuple[int, str, int]]]:
    """What `work` returns; and in order the time, name and bytes of its allocations and `BEGIN`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        resident = work()
    profiler = recording.profiler
    assert profiler is not None
    assert profiler.kineto_results is not None
    events = [
        (event.start_ns(), event.name(), event.nbytes())
        for event in profiler.kineto_results.events()
        if event.name().startswith((BEGIN, "[memory]"))
    ]
    return resident, sorted(events, key=lambda event: event[0])


def peak_after_begin(events: Iterable[tuple[int, str, int]]) -> int:
    """The largest sum of bytes from `BEGIN` on."""
    live, peak, begun = 0, 0, False
    for _, name, allocated in events:
        live += allocated
        begun = begun or name == BEGIN
        peak = max(peak, live) if begun else 0
    return peak


# The run


def rows_of(
    problem: str, facts: Mapping[str, ListFacts], measured: Measured
) -> Iterator[ContenderRow]:
    """The rows of a problem: each contender next to the floor and to DTensor."""
    cpu, wall, peaks = measured.cpu, measured.wall, measured.peaks
    floors = (name for name in cpu if name.startswith(FLOOR))
    floor = min(floors, key=lambda name: median(cpu[name]))
    for name in cpu:
        calls, sent = measured.sent[name]
        yield ContenderRow(
            problem=problem, floor=floor, name=name, cpu=cpu[name], wall=wall[name],
            peak=peaks[name], sent=sent, collectives=calls, facts=facts.get(name),
            above=above_floor(cpu[name], cpu[REFERENCE], cpu[floor]),
            of_step=step_ratio(cpu[name], cpu[REFERENCE]),
            of_wall=step_ratio(wall[name], wall[REFERENCE]),
            of_memory=peaks[name] / peaks[MEMORY_REFERENCE],
        )  # fmt: skip


def compared(problem: Problem, rounds: int, names: list[str], batch: bool) -> Iterator[BenchRow]:
    """Measure a problem in a world of its own. Raises `RuntimeError` where a rank fails."""
    plans = planned(problem.model, problem.ranks, problem.batch, problem.operators, names)
    measured = on_ranks(
        problem.ranks, "benchmarks.executor:measure", problem, plans, rounds, as_batch=batch
    )
    yield from rows_of(str(problem), {part.name: part.facts for part in plans.parts}, measured)
    yield from (LeftOut(str(problem), name, why) for name, why in plans.left_out.items())


def executor(
    problem: str = "",
    ranks: int = 4,
    rounds: int = 15,
    plan: tuple[str, ...] = (),
    batch: bool = False,
) -> Iterator[Case]:
    if rounds < 1:
        raise ValueError(f"--rounds: expected 1 or more, got {rounds}")
    for one in [Problem.parse(problem, ranks)] if problem else PROBLEMS:
        yield str(one), partial(compared, one, rounds, list(plan), batch)


if __name__ == "__main__":
    bench(executor)
