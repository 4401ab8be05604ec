"""`primepar plan --pipeline`: every split of the devices into stages, replicas and neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from primepar.commands.progress import Tick
from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster
from primepar.plan.pipeline.schedule import bubble
from primepar.plan.pipeline.splits import Pipeline, Splits
from primepar.plan.search.sequence_space import SpaceName


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


def pipelines(
    model: ModelConfig, cluster: Cluster, devices: int, batch: int, dtype: str | None,
    space: SpaceName, tick: Tick,
) -> list[SplitRow]:  # fmt: skip
    """All splits, the best first.

    Raises `PlanError` where none fits a device, with the smallest, and `ClusterError`.
    """
    dtype = dtype or next(iter(cluster.rates))
    found = Splits(model, cluster, devices, batch, dtype, space, tick=tick).ranked()
    rows = [_row(each, cluster) for each in found]
    if not rows[0].fits:
        least = ceil(min(row.memory for row in rows))
        raise PlanError(
            f"expected a split within the {cluster.memory:,.0f} bytes of a device of the cluster "
            f"{cluster.name}, got none: the smallest of their fastest plans takes {least:,} bytes, "
            f"{least - cluster.memory:,.0f} too many: take more --devices or a smaller --batch"
        )
    return rows


def _row(found: Pipeline, cluster: Cluster) -> SplitRow:
    idle = bubble(found.split.stages, found.microbatches)
    return SplitRow(*found.split, found.microbatches, found.size, found.seconds, idle, found.memory,
               found.memory <= cluster.memory)  # fmt: skip


def pipeline_words(rows: list[SplitRow]) -> str:
    """The rows as a table."""
    heads = ("stages", "replicas", "devices", "microbatches", "ms", "bubble", "MiB", "")
    cells = [heads, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(own, widths, strict=True)).rstrip()
             for own in cells]  # fmt: skip
    return "\n".join(lines) + "\n"


def _cells(row: SplitRow) -> tuple[str, ...]:
    split = tuple(map(str, (row.stages, row.replicas, row.parts)))
    took = f"{row.microbatches} of {row.microbatch}", f"{1e3 * row.seconds:,.1f}"
    memory = f"{row.memory / 2**20:,.1f}", "" if row.fits else "too much"
    return (*split, *took, f"{row.bubble:.0%}", *memory)
