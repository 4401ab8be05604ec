"""`primepar pipeline`: every split of the devices into pipeline stages and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from primepar.commands.options import JsonOption
from primepar.commands.plan_options import (
    BatchOption,
    ClusterOption,
    DevicesOption,
    DtypeOption,
    ModelArgument,
    OutputOption,
    Question,
    SpaceOption,
    print_result,
)
from primepar.commands.progress import Tick, progress
from primepar.errors import PlanError

if TYPE_CHECKING:
    from primepar.plan.cluster import Cluster
    from primepar.plan.pipeline.splits import Pipeline


@dataclass(frozen=True)
class SplitRow:
    """One split: seconds of a step, idle time over work, and bytes of the fullest device."""

    stages: int
    replicas: int
    parts: int
    microbatches: int
    microbatch: int
    seconds: float
    bubble: float
    memory: float
    fits: bool


def pipeline(
    model: ModelArgument,
    cluster: ClusterOption,
    devices: DevicesOption,
    batch: BatchOption = 8,
    dtype: DtypeOption = None,
    space: SpaceOption = "paper",
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """List all splits of the devices into pipeline stages, replicas and devices of a replica.

    The fastest comes first. Every stage has the fastest plan of its own. With -o the first is
    written as a plan, its pipeline being 1F1B.
    """
    question = Question(model, cluster, devices, batch, dtype, space)
    with progress() as tick:
        rows = pipelines(question, tick, output)
    print_result(rows, pipeline_words(rows), output, json)


def pipelines(question: Question, tick: Tick, output: Path | None = None) -> list[SplitRow]:
    """All splits, the best first; its plan is written into `output` if that is given.

    Raises `PlanError` where none fits a device, with the smallest, and `ClusterError`.
    """
    from primepar.plan.pipeline.split_plan import split_plan
    from primepar.plan.pipeline.splits import Splits
    from primepar.plan.plan_file import save_plan

    model, cluster = question.read
    dtype = question.dtype or next(iter(cluster.rates))
    splits = Splits(
        model, cluster, question.devices, question.batch, dtype, question.space, tick=tick
    )
    ranked = splits.ranked()
    rows = [_row(split, cluster) for split in ranked]
    if not rows[0].fits:
        least = ceil(min(row.memory for row in rows))
        raise PlanError(
            f"expected a split within the {cluster.memory:,.0f} bytes of a device of the cluster "
            f"{cluster.name}, got none: the smallest of their fastest plans takes {least:,} bytes, "
            f"{least - cluster.memory:,.0f} too many: take more --devices or a smaller --batch"
        )
    if output is not None:
        save_plan(split_plan(ranked[0], model), output)
    return rows


def _row(split: Pipeline, cluster: Cluster) -> SplitRow:
    from primepar.plan.pipeline.schedule import bubble

    idle = bubble(split.split.stages, split.microbatches)
    return SplitRow(*split.split, split.microbatches, split.size, split.seconds, idle, split.memory,
               split.memory <= cluster.memory)  # fmt: skip


def pipeline_words(rows: list[SplitRow]) -> str:
    """The rows as a table."""
    heads = ("stages", "replicas", "devices", "microbatches", "ms", "bubble", "MiB", "")
    cells = [heads, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in cells]  # fmt: skip
    return "\n".join(lines) + "\n"


def _cells(row: SplitRow) -> tuple[str, ...]:
    split = tuple(map(str, (row.stages, row.replicas, row.parts)))
    took = f"{row.microbatches} of {row.microbatch}", f"{1e3 * row.seconds:,.1f}"
    memory = f"{row.memory / 2**20:,.1f}", "" if row.fits else "too much"
    return (*split, *took, f"{row.bubble:.0%}", *memory)
