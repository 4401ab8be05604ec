"""The way of a micro-batch from one stage of a pipeline to another, and of its gradient back."""

from __future__ import annotations

from typing import NamedTuple

from primepar.plan.cluster import Cluster
from primepar.plan.cost.links import level_between
from primepar.plan.pipeline.stage import Stage


class Split(NamedTuple):
    """Stages, replicas of each, and devices of each replica: the paper's p, d and m."""

    stages: int
    replicas: int
    parts: int


def boundary_seconds(
    cluster: Cluster, split: Split, ends: tuple[int, int], sender: Stage, receiver: Stage
) -> float:
    """Seconds to send a micro-batch from one of two stages to the other, and its gradient back.

    Every device sends an equal part, which the replicas there all-gather.
    """
    training, layouts = sender.group.training, sender.group.catalogue.layouts
    size = float(training.rows * sender.group.model.hidden * training.item)
    cut = {bit for dim in (0, 1) for bit in layouts.line(sender.leaves, dim)}
    sending = _send_seconds(cluster, split, ends, size / split.parts)
    sending += training.links.all_gather(layouts.others([*cut]), size / split.parts)
    forward, backward = (float(layouts.ways([source], [target]).seconds(size)[0, 0])
                         for source, target in ((sender.leaves, receiver.takes),
                                                (receiver.takes, sender.leaves)))  # fmt: skip
    return 2 * sending + forward + backward


def _send_seconds(cluster: Cluster, split: Split, ends: tuple[int, int], size: float) -> float:
    """Seconds in which every device sends `size` bytes to its counterpart in another stage."""
    devices = split.replicas * split.parts
    first, second = (stage * devices for stage in ends)
    level = max(level_between(cluster, first + rank, second + rank) for rank in range(devices))
    link = cluster.links[level]
    behind = min(devices, cluster.links[level - 1].joins) if level and link.shared else 1
    return float(link.message(size) + size / min(link.bandwidth / behind, link.alone))
