"""Bubble and stashes of every pipeline schedule: the closed formula next to emulated devices.

Each program of a training step is run on emulated devices, whose logical clock gives F, B and W
their times and messages none. The bubble is the longest time from the first to the last product of
a stage, less the products. Stashes are counted when a forward reads them and when they are freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import get_args

from msgspec import Struct

from primepar.partition.pipeline.actions import ScheduleName
from primepar.partition.pipeline.dependencies import PipelineOrders
from primepar.partition.pipeline.formulas import UNIT, ActionTimes, bubble, peak_stashes
from primepar.partition.pipeline.program import LOSS, PHASE_OF, pipeline_program
from primepar.reference.check import memories
from primepar.reference.emulator.executor import LogicalClock, emulate
from primepar.schedule.events import Event


class PipelineRow(Struct, frozen=True):
    """One schedule with some stages: formulas, and counts of the emulated devices."""

    schedule: ScheduleName
    stages: int
    micro_batches: int
    chunks: int
    bubble: float
    """Units of time, as measured."""
    bubble_formula: int
    stashes: tuple[int, ...]
    """The most on every stage, as counted."""
    stashes_formula: tuple[int, ...]
    share: float
    """The bubble as a part of the whole time of a stage."""

    @property
    def equal(self) -> bool:
        """Whether both formulas give what was measured."""
        return self.bubble == self.bubble_formula and self.stashes == self.stashes_formula


def measure_pipeline(pipeline: PipelineOrders, times: ActionTimes = UNIT) -> PipelineRow:
    """Emulate one training step of a pipeline, and count."""
    program = pipeline_program(pipeline, rows=1, width=1)
    phases = dict(zip(PHASE_OF.values(), times, strict=True)) | {LOSS: 0}
    clock = LogicalClock(transfer=0, phases=phases)
    events = emulate(program, memories(program), clock=clock).events
    work = pipeline.chunks * pipeline.micro_batches * sum(times)
    by_stage = [[event for event in events if event.rank == stage]
                for stage in range(pipeline.stages)]  # fmt: skip
    idle = max(_span(stage) for stage in by_stage) - work
    name, sizes = pipeline.schedule, (pipeline.stages, pipeline.micro_batches)
    return PipelineRow(
        name,
        *sizes,
        pipeline.chunks,
        idle,
        bubble(name, *sizes, times),
        tuple(map(_stashes, by_stage)),
        tuple(peak_stashes(name, stage, *sizes, pipeline.chunks)
              for stage in range(pipeline.stages)),
        idle / (idle + work),
    )  # fmt: skip


def _span(events: Iterable[Event]) -> float:
    products = [event for event in events if event.op == "compute" and event.phase != LOSS]
    return max(event.end for event in products) - min(event.start for event in products)


def _stashes(events: Iterable[Event]) -> int:
    """The most inputs at once that a forward has read and no free has removed."""
    kept: set[str] = set()
    most = 0
    for event in events:
        layer, _, phase = event.phase.rpartition(".")
        if phase == "forward":
            kept.add(f"x.{layer.removeprefix('layer')}[{event.sub_operator['M']},0]")
            most = max(most, len(kept))
        elif event.op == "free":
            kept.discard(event.block)
    return most


def measure_pipelines(stages: Iterable[int], tick: Callable[[str], object]) -> list[PipelineRow]:
    """Measure every schedule with twice as many micro-batches as stages."""
    rows = []
    for count in stages:
        for name in get_args(ScheduleName):
            tick(f"{name}, {count} stages")
            rows.append(measure_pipeline(PipelineOrders.of(name, count, 2 * count)))
    return rows


def pipeline_lines(rows: Iterable[PipelineRow]) -> Iterator[str]:
    """The table: each number that was counted, with the formula's in brackets."""
    yield f"{'schedule':16}   p    M   v   {'bubble':>8}   share  stashes, first and last stage"
    for row in rows:
        first, last = (f"{row.stashes[stage]} ({row.stashes_formula[stage]})" for stage in (0, -1))
        counted = f"{row.bubble:g} ({row.bubble_formula})"
        yield (
            f"{row.schedule:16}  {row.stages:2}  {row.micro_batches:3}  {row.chunks:2}"
            f"   {counted:>8}  {row.share:6.1%}  {first}, {last}"
            f"{'' if row.equal else '  differs'}"
        )
