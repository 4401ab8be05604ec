"""Do bubble and stashes of every pipeline schedule follow the closed formulas?

Each program of a training step is run on emulated devices, whose logical clock gives F, B and W
their times and messages none. The bubble is the longest time from the first to the last product of
a stage, less the products. Stashes are counted when a forward reads them and when they are freed.
There are twice as many micro-batches as stages. In brackets is what the formula gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import get_args

from benchmarks.bench import BenchRow, Case, Cells, bench
from primepar.partition.pipeline.actions import ScheduleName
from primepar.partition.pipeline.dependencies import PipelineOrders
from primepar.partition.pipeline.formulas import UNIT, ActionTimes, bubble, peak_stashes
from primepar.partition.pipeline.program import LOSS, PHASE_OF, pipeline_program
from primepar.reference.check import memories
from primepar.reference.emulator.executor import LogicalClock, emulate
from primepar.schedule.events import Event

MOST_STAGES = 64


class PipelineRow(BenchRow, frozen=True):
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

    @property
    def code(self) -> int:
        return 0 if self.equal else 1

    @property
    def cells(self) -> Cells:
        first, last = (f"{self.stashes[place]} ({self.stashes_formula[place]})"
                       for place in (0, -1))  # fmt: skip
        return {
            "schedule": self.schedule,
            "p": self.stages,
            "M": self.micro_batches,
            "v": self.chunks,
            "bubble": f"{self.bubble:g} ({self.bubble_formula})",
            "share": f"{self.share:.1%}",
            "stashes, first stage": first,
            "last stage": last,
            "": "" if self.equal else "differs",
        }


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


def pipelines(stages: tuple[int, ...] = tuple(range(2, 17))) -> Iterator[Case]:
    for count in stages:
        if not 1 <= count <= MOST_STAGES:
            raise ValueError(
                f"--stages: expected numbers from 1 to {MOST_STAGES}, got {count}: "
                "write --stages 2,4,8"
            )
        for name in get_args(ScheduleName):
            orders = PipelineOrders.of(name, count, 2 * count)
            yield f"{name}, {count} stages", partial(measure_pipeline, orders)


if __name__ == "__main__":
    bench(pipelines)
