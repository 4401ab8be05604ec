"""Proves every pipeline up to 16 stages and 64 micro-batches, and checks the orders of each.

All five schedules, the interleaved one with 2 to 4 chunks. Of each instance all properties of the
program are proved that it asks, deadlock-freedom among them, and the stashes are counted along the
orders. The first instance that is not proved ends the sweep, with exit code 1.

    python -m benchmarks.pipeline_sweep [--stages P] [--micro-batches M] [--jobs N]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pool
from time import perf_counter
from typing import NamedTuple, get_args

from primepar.partition.pipeline.actions import ScheduleName, chunks_of
from primepar.partition.pipeline.dependencies import PipelineOrders
from primepar.partition.pipeline.formulas import peak_stashes
from primepar.partition.pipeline.program import pipeline_program
from primepar.verify.program import verify_program


class PipelineSize(NamedTuple):
    """One instance of a schedule."""

    schedule: ScheduleName
    stages: int
    micro_batches: int
    chunks: int


def sizes(stages: int, micro_batches: int) -> Iterator[PipelineSize]:
    """Every instance up to these numbers."""
    for schedule in get_args(ScheduleName):
        interleaved = schedule == "interleaved-1f1b"
        for p in range(1, stages + 1):
            for count in range(1, micro_batches + 1):
                if interleaved and count % p:
                    continue
                for chunks in (2, 3, 4) if interleaved else (chunks_of(schedule),):
                    yield PipelineSize(schedule, p, count, chunks)


def fault(size: PipelineSize) -> str | None:
    """What is wrong with one instance."""
    pipeline = PipelineOrders.of(*size)
    for stage, order in enumerate(pipeline.orders):
        kept = most = 0
        for action in order:
            kept += (action.kind == "F") - (action.kind == "W")
            most = max(most, kept)
        expected = peak_stashes(size.schedule, stage, *size[1:])
        if most != expected:
            return f"{size}: expected {expected} stashes on stage {stage}, got {most}"
    report = verify_program(pipeline_program(pipeline, 1, 1), str(size))
    return None if report.verdict == "proved" else str(report)


def main() -> None:
    """Prove every instance; print how many there were of each schedule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    asked = list(sizes(options.stages, options.micro_batches))
    start = perf_counter()
    with Pool(options.jobs) as pool:
        for sentence in pool.imap_unordered(fault, asked, chunksize=4):
            if sentence is not None:
                raise SystemExit(sentence)
    for schedule, count in Counter(size.schedule for size in asked).items():
        print(f"{schedule:16}  {count:5} instances proved")
    print(f"{perf_counter() - start:.0f} s with {options.jobs} processes")


if __name__ == "__main__":
    main()
