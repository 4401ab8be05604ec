"""Is every pipeline up to 16 stages and 64 micro-batches proved, and are its stashes as stated?

All five schedules, the interleaved one with 2 to 4 chunks. Of each instance all properties of the
program are proved that it asks, deadlock-freedom among them, and the stashes are counted along the
orders. The first instance that is not proved ends the sweep, with exit code 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool
from typing import Annotated, NamedTuple, get_args

from benchmarks.bench import BenchRow, Case, Column, bench
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


class SweepRow(BenchRow, frozen=True):
    """A schedule, all of whose instances are proved."""

    schedule: Annotated[ScheduleName, Column("schedule")]
    instances: Annotated[int, Column("instances proved")]


def sizes(schedule: ScheduleName, stages: int, micro_batches: int) -> Iterator[PipelineSize]:
    """Every instance up to these numbers."""
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


def measure(schedule: ScheduleName, stages: int, micro_batches: int, jobs: int) -> SweepRow:
    """Prove every instance of a schedule. Raises `SystemExit` at one that is not."""
    asked = list(sizes(schedule, stages, micro_batches))
    with Pool(jobs) as pool:
        for sentence in pool.imap_unordered(fault, asked, chunksize=4):
            if sentence is not None:
                raise SystemExit(sentence)
    return SweepRow(schedule, len(asked))


def pipeline_sweep(stages: int = 16, micro_batches: int = 64, jobs: int = 2) -> Iterator[Case]:
    for schedule in get_args(ScheduleName):
        yield schedule, partial(measure, schedule, stages, micro_batches, jobs)


if __name__ == "__main__":
    bench(pipeline_sweep)
