"""The executor next to DTensor, Megatron by hand, and a floor without communication, over gloo.

All contenders of a problem run in one world, in interleaved rounds, checked against float64. CPU
seconds are user and system time summed over ranks. A score is the median over rounds of a
contender's seconds above the floor, over DTensor's, with a 95% interval by a bootstrap over rounds.

    python -m benchmarks.executor [--problem mlp:M=8192,h=512 --ranks 4] [--rounds N] [--plan NAME]
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.executor.chart import chart
from benchmarks.executor.machine import LoadClock
from benchmarks.executor.planned import Planned, planned
from benchmarks.executor.problem import PROBLEMS, Problem
from benchmarks.executor.processes import on_ranks
from benchmarks.executor.report import text
from benchmarks.executor.results import BenchmarkRun, ContenderResult, ProblemResult
from primepar.files import replace, write_text

if TYPE_CHECKING:
    from benchmarks.executor.cases import Measured


def main() -> None:
    """Print the tables, and write the JSON and the chart that are asked for."""
    options = parser().parse_args()
    try:
        problems = [Problem.parse(options.problem, options.ranks)] if options.problem else PROBLEMS
    except ValueError as error:
        parser().error(f"--problem: {error}")
    if options.rounds < 1:
        parser().error(f"--rounds: expected 1 or more, got {options.rounds}")
    run = benchmarked(problems, options.rounds, options.plan, options.modules, options.batch)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        replace(options.out, msgspec.json.format(msgspec.json.encode(run)))
    if options.chart:
        options.chart.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.chart, chart(run))
    print(text(run))


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.executor", description=(__doc__ or "").partition("\n")[0]
    )
    options.add_argument("--problem", metavar="TEXT", help="as in mlp:M=8192,h=512; default: all")
    options.add_argument("--ranks", type=int, default=4, help="ranks of --problem")
    options.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds of a problem")
    options.add_argument("--plan", action="append", default=[], metavar="NAME", help="a preset")
    options.add_argument("--modules", action="store_true", help="also PartitionedLinear modules")
    options.add_argument("--batch", action="store_true", help="all ranks under SCHED_BATCH")
    options.add_argument("--out", type=Path, metavar="FILE", help="write the run as JSON")
    options.add_argument("--chart", type=Path, metavar="FILE", help="write the chart as SVG")
    return options


def benchmarked(
    problems: Iterable[Problem],
    rounds: int,
    names: list[str],
    modules: bool = False,
    batch: bool = False,
) -> BenchmarkRun:
    """Measure problems one after another. Raises `RuntimeError` where a rank fails."""
    clock, own, results = LoadClock(), 0.0, []
    for problem in problems:
        plans = planned(problem.model, problem.ranks, problem.batch, problem.operators, names)
        measured: Measured = on_ranks(
            problem.ranks,
            "benchmarks.executor.cases:measure",
            problem,
            plans,
            rounds,
            modules,
            as_batch=batch,
        )
        own += measured.own
        results.append(_result(problem, plans, measured))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return BenchmarkRun(clock.stop(own + usage.ru_utime + usage.ru_stime), rounds, batch, results)


def _result(problem: Problem, plans: Planned, measured: Measured) -> ProblemResult:
    facts = {part.name: part.facts for part in plans.parts}
    contenders = [
        ContenderResult(
            timed.name,
            timed.repetitions,
            timed.cpu,
            timed.wall,
            measured.peaks[timed.name],
            measured.traffic[timed.name].sent,
            measured.traffic[timed.name].collectives,
            facts.get(timed.name),
        )
        for timed in measured.timed
    ]
    return ProblemResult(str(problem), problem.kind, contenders, plans.left_out)


if __name__ == "__main__":
    main()
