"""`primepar pipeline`: every split of the devices into pipeline stages and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from primepar.commands.options import JsonOption
from primepar.commands.plan_options import (
    BatchOption,
    ClusterOption,
    DtypeOption,
    ModelArgument,
    OutputOption,
    Question,
    SpaceOption,
    print_result,
)
from primepar.commands.progress import progress
from primepar.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from primepar.plan.cluster import Cluster
    from primepar.plan.search.splits import Pipeline

Shard = Literal["none", "optimizer", "gradients", "parameters"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "interleaved-1f1b"]


@dataclass(frozen=True)
class SplitRow:
    """One split: seconds of a step, idle time over work, and bytes of the fullest device.

    The stash is that of all micro-batches in flight.
    """

    stages: int
    replicas: int
    parts: int
    microbatches: int
    microbatch: int
    chunks: int
    shard: str
    recompute: str
    seconds: float
    bubble: float
    parameters: float
    gradients: float
    states: float
    stash: float
    running: float
    memory: float
    fits: bool
    only_priced: str | None
    """What of the options a training step does not have."""


def pipeline(
    model: ModelArgument,
    cluster: ClusterOption,
    devices: Annotated[
        int, typer.Option("--devices", help="Devices of the plan, any number.", show_default=False)
    ],
    batch: BatchOption = 8,
    dtype: DtypeOption = None,
    space: SpaceOption = "paper",
    shard: Annotated[
        Shard | None,
        typer.Option(
            help="What is in shards over equal devices: ZeRO-1, 2 or 3.",
            show_default="none or optimizer",
        ),
    ] = None,
    recompute: Annotated[
        Recompute | None,
        typer.Option(help="Activations to compute again.", show_default="the fastest that fits"),
    ] = None,
    schedule: Annotated[
        Schedule | None,
        typer.Option(help="Order of micro-batches.", show_default="the faster"),
    ] = None,
    row: Annotated[
        int, typer.Option(min=1, help="Row of the list that -o writes, the first is 1.")
    ] = 1,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """List all splits of the devices into pipeline stages, replicas and devices of a replica.

    The fastest comes first. Every stage has the fastest plan of its own. With -o the first, or
    row N, is written as a plan, with its pipeline and options.
    """
    from primepar.plan.plan_file import save_plan
    from primepar.plan.search.split_plan import split_plan
    from primepar.plan.search.splits import Splits
    from primepar.plan.search.stage_cost import EXECUTED, OptionChoices

    question = Question(model, cluster, devices, batch, dtype, space)
    config, machine = question.read
    choices = OptionChoices(
        EXECUTED.shards if shard is None else (shard,),
        EXECUTED.recomputes if recompute is None else (recompute,),
        EXECUTED.schedules if schedule is None else (schedule,),
    )
    with progress() as tick:
        ranked = Splits(
            config, machine, devices, batch, dtype or next(iter(machine.rates)), space,
            choices=choices, tick=tick, posted=True,
        ).ranked()  # fmt: skip
    rows = [_row(split, machine) for split in ranked]
    if not rows[0].fits:
        least = ceil(min(known.memory for known in rows))
        raise PlanError(
            f"expected a split within the {machine.memory:,.0f} bytes of a device of the cluster "
            f"{machine.name}, got none: the smallest of their fastest plans takes {least:,} bytes, "
            f"{least - machine.memory:,.0f} too many: take more --devices or a smaller --batch"
        )
    if row > len(rows):
        raise ConfigError(
            f"--row: expected 1 to {len(rows)}, the rows of the list, got {row}: take {len(rows)}"
        )
    if output is not None:
        save_plan(split_plan(ranked[row - 1], config), output)
    print_result(rows, pipeline_words(rows), output, json)


def _row(split: Pipeline, cluster: Cluster) -> SplitRow:
    from primepar.plan.plan import recomputed_words

    options, fullest = split.options, max(split.stage_bytes, key=sum)
    return SplitRow(
        *split.split, split.microbatches, split.size, options.chunks, options.shard,
        recomputed_words(options.recompute), split.seconds, split.bubble, *fullest, split.memory,
        split.memory <= cluster.memory, options.only_priced,
    )  # fmt: skip


def pipeline_words(rows: list[SplitRow]) -> str:
    """The rows as a table."""
    heads = ("stages", "replicas", "devices", "microbatches", "chunks", "shards", "again", "ms",
             "bubble", "MiB", "")  # fmt: skip
    cells = [heads, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in cells]  # fmt: skip
    return "\n".join(lines) + "\n"


def _cells(row: SplitRow) -> tuple[str, ...]:
    split = tuple(map(str, (row.stages, row.replicas, row.parts)))
    batches = f"{row.microbatches} of {row.microbatch}", str(row.chunks)
    took = f"{1e3 * row.seconds:,.1f}", f"{row.bubble:.0%}", f"{row.memory / 2**20:,.1f}"
    remark = "" if row.only_priced is None else "only priced"
    return (*split, *batches, row.shard, row.recompute, *took, remark if row.fits else "too much")
