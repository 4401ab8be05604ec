"""The executor next to DTensor, Megatron by hand, and a floor without communication, over gloo.

All contenders of a problem run in one world, in interleaved rounds, checked against float64. CPU
seconds are user and system time summed over ranks. A score is the median over rounds of a
contender's seconds above the floor, over DTensor's, with a 95% interval by a bootstrap over rounds.

    python -m benchmarks.executor [--problem mlp:M=8192,h=512 --ranks 4] [--rounds N] [--plan NAME]
"""

from __future__ import annotations

import argparse
from statistics import median

from benchmarks.executor.planned import Planned, planned
from benchmarks.executor.problem import PROBLEMS, Problem
from benchmarks.executor.processes import on_ranks
from benchmarks.executor.score import score

REFERENCE = "dtensor"
FLOOR = "floor:"


def table(problem: Problem, plans: Planned, measured) -> str:
    """The contenders of a shape as text."""
    by_name = {entry.name: entry for entry in measured.timed}
    floors = [entry for entry in measured.timed if entry.name.startswith(FLOOR)]
    floor = min(floors, key=lambda timed: median(timed.cpu))
    reference = by_name[REFERENCE]
    lines = [
        f"{problem}, {len(floor.cpu)} rounds, floor: {floor.name}",
        f"{'':24}  CPU ms  median  above floor / dtensor      wall ms  median  / dtensor"
        "   steps   new KiB / dtensor-sp",
    ]
    for name, timed in by_name.items():
        cpu = score(timed.cpu, reference.cpu, floor.cpu)
        none = [0.0] * len(timed.wall)
        wall = score(timed.wall, reference.wall, none)
        peak = measured.peaks[name]
        lines.append(
            f"{name:24}{1e3 * min(timed.cpu):8.2f}{1e3 * median(timed.cpu):8.2f}"
            f"  {cpu.ratio:6.2f} [{cpu.low:6.2f},{cpu.high:6.2f}]"
            f"   {1e3 * min(timed.wall):8.2f}{1e3 * median(timed.wall):8.2f}"
            f"  {wall.ratio:5.2f} [{wall.low:5.2f},{wall.high:5.2f}]{timed.repetitions:5}"
            f"{peak / 1024:12.0f} {peak / measured.peaks['dtensor-sp']:6.2f}"
        )
    return "\n".join(lines + [f"left out {name}: {why}" for name, why in plans.left_out.items()])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problem", metavar="TEXT", help="as in mlp:M=8192,h=512; default: all")
    parser.add_argument("--ranks", type=int, default=4, help="ranks of --problem")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds of a problem")
    parser.add_argument("--plan", action="append", default=[], metavar="NAME", help="a preset")
    parser.add_argument("--modules", action="store_true", help="also two PartitionedLinear modules")
    options = parser.parse_args()
    try:
        problems = [Problem.parse(options.problem, options.ranks)] if options.problem else PROBLEMS
    except ValueError as error:
        parser.error(f"--problem: {error}")
    for problem in problems:
        plans = planned(
            problem.model, problem.ranks, problem.batch, problem.operators, options.plan
        )
        measured = on_ranks(
            problem.ranks,
            "benchmarks.executor.cases:measure",
            problem,
            plans,
            options.rounds,
            options.modules,
        )
        print(table(problem, plans, measured), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
