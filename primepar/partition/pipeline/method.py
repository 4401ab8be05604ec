"""What all pipeline methods have in common: their sizes, their program and their facts."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar

from msgspec import Meta

from primepar.partition.pipeline.actions import ScheduleName
from primepar.partition.pipeline.dependencies import PipelineOrders
from primepar.partition.pipeline.formulas import bubble, bubble_share, peak_stashes
from primepar.partition.pipeline.program import LOSS, pipeline_program
from primepar.schedule.program import Program
from primepar.schedule.program_method import ProgramMethod

Stages = Annotated[int, Meta(ge=1, le=64)]
MicroBatches = Annotated[int, Meta(ge=1, le=512)]
Elements = Annotated[int, Meta(ge=1, le=65536)]


class PipelineMethod(ProgramMethod, frozen=True, kw_only=True):
    """A pipeline of linear layers, one in every chunk of the model.

    A micro-batch has `rows` rows; the input and the output of a layer have `width` columns.
    """

    schedule: ClassVar[ScheduleName]
    untimed = frozenset({"transfer", LOSS})
    stages: Stages = 4
    micro_batches: MicroBatches = 8
    rows: Elements = 2
    width: Elements = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.pipeline.orders  # made here, so that sizes that do not fit are refused

    @cached_property
    def pipeline(self) -> PipelineOrders:
        """The orders of the stages. Raises `MethodError` for sizes that do not fit together."""
        return PipelineOrders.of(self.schedule, self.stages, self.micro_batches, self.chunk_count)

    @property
    def chunk_count(self) -> int | None:
        """Chunks of a stage; None where the schedule fixes their number."""
        return None

    def program(self) -> Program:
        """One training step."""
        return pipeline_program(self.pipeline, self.rows, self.width)

    def facts(self) -> dict[str, str]:
        """The bubble for equal times of F, B and W, and what the stages keep."""
        sizes = self.stages, self.micro_batches
        idle = bubble(self.schedule, *sizes)
        share = bubble_share(self.schedule, *sizes, self.chunk_count)
        stashes = [
            peak_stashes(self.schedule, stage, *sizes, self.chunk_count)
            for stage in range(self.stages)
        ]
        sent = len(self.pipeline.messages) * self.rows * self.width
        return {
            "bubble": f"{idle} units where F, B and W take one each: {share} of the time",
            "stashes": f"at most {', '.join(map(str, stashes))} on the stages",
            "sent": f"{sent} elements by all stages together",
        }
