"""The executor next to DTensor, Megatron by hand and a floor without communication, over gloo.

All contenders of a shape run in one world, in interleaved rounds, checked against float64. CPU
seconds are user and system time summed over ranks. A score is the median over rounds of a
contender's seconds above the floor, over DTensor's, with a 95% interval by a bootstrap over rounds.

    python -m benchmarks.executor [--shape mlp:M=8192,h=512 --ranks 4] [--rounds N] [--only NAME]
"""

from __future__ import annotations

import argparse
from statistics import median

from benchmarks.executor.mlp import FLOORS, MlpTimes, measure
from benchmarks.executor.processes import on_ranks
from benchmarks.executor.score import score
from benchmarks.executor.shapes import SHAPES, MlpShape

REFERENCE = "dtensor"


def table(shape: MlpShape, times: MlpTimes) -> str:
    """The contenders of a shape as text."""
    by_name = {entry.name: entry for entry in times.timed}
    floor = min((by_name[name] for name in FLOORS), key=lambda timed: median(timed.cpu))
    reference = by_name[REFERENCE]
    lines = [
        f"{shape}, {len(floor.cpu)} rounds, floor: {floor.name}",
        f"{'':24}  CPU ms  median  above floor / dtensor      wall ms  median  / dtensor   steps",
    ]
    for name, timed in by_name.items():
        cpu = score(timed.cpu, reference.cpu, floor.cpu)
        none = [0.0] * len(timed.wall)
        wall = score(timed.wall, reference.wall, none)
        lines.append(
            f"{name:24}{1e3 * min(timed.cpu):8.2f}{1e3 * median(timed.cpu):8.2f}"
            f"  {cpu.ratio:6.2f} [{cpu.low:6.2f},{cpu.high:6.2f}]"
            f"   {1e3 * min(timed.wall):8.2f}{1e3 * median(timed.wall):8.2f}"
            f"  {wall.ratio:5.2f} [{wall.low:5.2f},{wall.high:5.2f}]{timed.repetitions:5}"
        )
    return "\n".join(lines + [f"left out {name}: {why}" for name, why in times.left_out.items()])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", metavar="SHAPE", help="as in mlp:M=8192,h=512; default: all")
    parser.add_argument("--ranks", type=int, default=4, help="ranks of --shape")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds of a shape")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="plans with this in their name"
    )
    options = parser.parse_args()
    try:
        shapes = [MlpShape.parse(options.shape, options.ranks)] if options.shape else SHAPES
    except ValueError as error:
        parser.error(f"--shape: {error}")
    for shape in shapes:
        times = on_ranks(shape.ranks, measure, shape, options.rounds, options.only)
        print(table(shape, times), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
