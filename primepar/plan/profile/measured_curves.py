"""Curves of a cluster file from measured times: products by operations, transfers by bytes.

Times of one size are joined to their median: those of several shapes with the same operations, to a
power of two, or of several groups of devices. A point that takes as long as a larger one is left
out, so that seconds grow; the reader takes the time of the first point for anything smaller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import log2
from statistics import median

from primepar.plan.curves import Points
from primepar.plan.profile.fit import Sample

MOVED = {"all_reduce": "all-reduce", "all_gather": "all-gather",
         "reduce_scatter": "reduce-scatter", "message": "hop"}  # fmt: skip
"""Name in a cluster file -> the samples of its curves."""
LEAST = 2
"""Points that a curve has at least."""


def product_points(samples: Iterable[Sample]) -> Points:
    """Operations and operations per second of products, whatever their shape."""
    by_size: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_size[round(log2(sample.counts["operations"]))].append(sample)
    pairs = []
    for group in by_size.values():
        size = median(sample.counts["operations"] for sample in group)
        rate = median(sample.counts["operations"] / sample.seconds for sample in group)
        pairs.append((size, size / rate))
    return growing(pairs)


def transfer_points(samples: Sequence[Sample], name: str) -> dict[int, Points]:
    """By the number of devices: bytes and bus bandwidth of a collective, or of a message."""
    by_group: dict[int, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.what == MOVED[name]:
            group, size, scale = _size(sample, name)
            by_group[group][size].append(sample.seconds / scale)
    curves = {group: growing((size, median(times)) for size, times in by_size.items())
              for group, by_size in sorted(by_group.items())}  # fmt: skip
    return {group: points for group, points in curves.items() if len(points) >= LEAST}


def _size(sample: Sample, name: str) -> tuple[int, float, float]:
    """Devices, bytes as nccl-tests counts them, and the bytes that each device sends over those."""
    sent, messages = sample.counts["bytes"], round(sample.counts["messages"])
    if name == "message":
        return 2, sent, 1.0
    rounds = 2 if name == "all_reduce" else 1
    group = messages // rounds + 1
    scale = rounds * (group - 1) / group
    return group, sent / scale, scale


def growing(pairs: Iterable[tuple[float, float]]) -> Points:
    """Sizes and rates of sizes and seconds, without those that take as long as a larger size."""
    points: list[tuple[float, float]] = []
    shortest = float("inf")
    for size, seconds in sorted(pairs, reverse=True):
        rate = float(f"{size / seconds:.4g}")
        if size / rate < shortest:
            shortest = size / rate
            points.append((size, rate))
    return tuple(reversed(points))


def points_text(points: Points) -> str:
    """Points as TOML."""
    return f"[{', '.join(f'[{size:.6g}, {rate:.4g}]' for size, rate in points)}]"


def curve_lines(samples: Sequence[Sample]) -> Iterator[str]:
    """The tables of curves of a level of links."""
    for name, what in MOVED.items():
        by_group = transfer_points(samples, name)
        if by_group:
            yield ""
            yield f"[links.curves.{name}]"
        for group, points in by_group.items():
            yield f"{group} = {points_text(points)}    # measured: {what}, bytes and bytes a second"
