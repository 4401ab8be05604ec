"""The cluster file of measured times; its comments state what was measured and how well it fits.

Times on a line are fitted by linear regression on counts, the seconds of each counted thing. Errors
are relative, so that short times weigh as much as long ones.

Curves have products by operations, transfers by bytes. Times of one size are joined to their
median: those of several shapes with the same operations, to a power of two, or of several groups of
devices. A point that takes as long as a larger one is left out, so that seconds grow; the reader
takes the time of the first point for anything smaller.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import log2
from statistics import median

import numpy as np

from primepar.plan.cluster import KINDS
from primepar.plan.cluster_parts import Points, curve


@dataclass(frozen=True)
class Sample:
    """Median seconds of one measurement, and its counts: launches, operations, bytes, messages.

    `what` names the series of measurements, `size` the one of them.
    """

    what: str
    size: str
    counts: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class Fit:
    """Seconds of each counted thing, 0 where its fitted time would be negative; and the errors.

    `errors` has for every sample its predicted time over the measured one, minus 1.
    """

    seconds: Mapping[str, float]
    errors: tuple[float, ...] = field(default=())

    @property
    def error(self) -> float:
        """Median of the absolute errors."""
        return float(np.median(np.abs(self.errors)))


def fit(samples: Sequence[Sample], known: Mapping[str, float] | None = None) -> Fit:
    """Seconds of everything that the samples count, none below 0; `known` ones stay as given.

    While a fitted time is negative, the most negative one is set to 0 and the others are fitted
    again.
    """
    known = known or {}
    free = sorted({name for sample in samples for name in sample.counts} - known.keys())
    seconds = dict(known)
    while free:
        values = _solved(samples, free, known)
        least = int(np.argmin(values))
        if values[least] >= 0:
            seconds |= dict(zip(free, values.tolist(), strict=True))
            break
        seconds[free.pop(least)] = 0.0
    return Fit(
        seconds, tuple(_predicted(sample, seconds) / sample.seconds - 1 for sample in samples)
    )


def _solved(
    samples: Sequence[Sample], free: Sequence[str], known: Mapping[str, float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Least squares of the relative errors; columns are scaled to equal maxima."""
    rows = np.array([[sample.counts.get(name, 0.0) for name in free] for sample in samples])
    measured = np.array([sample.seconds for sample in samples])
    rest = np.array([1 - _predicted(sample, known) / sample.seconds for sample in samples])
    rows = rows / measured[:, None]
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    values, *_ = np.linalg.lstsq(rows / scale, rest, rcond=None)
    solution: np.ndarray[tuple[int], np.dtype[np.float64]] = values / scale
    return solution


def _predicted(sample: Sample, seconds: Mapping[str, float]) -> float:
    return sum(count * seconds.get(name, 0.0) for name, count in sample.counts.items())


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


RINGS = {"all_reduce": ("all-reduce",), "all_gather": ("all-gather", "reduce-scatter")}
"""Collectives with numbers of their own -> the samples that they are fitted to."""
HALF = 0.5
"""Transfers overlap products where at least this part of the shorter time is hidden."""

UNSEEN = 1e-6
"""A count that takes a smaller part of every time than this is rounding."""


@dataclass(frozen=True)
class MeasuredMachine:
    """What was measured: `ranks` processes at once, each with `memory` bytes, in one data type."""

    name: str
    where: str
    date: str
    ranks: int
    memory: int
    dtype: str


def cluster_text(machine: MeasuredMachine, samples: Sequence[Sample], hidden: float) -> str:
    """A TOML text for `read_cluster`; `hidden` is the part of a transfer that products hide."""
    passes = fit(_of(samples, ("pass",)))
    products = fit(_of(samples, ("product",)), {"bytes": passes.seconds["bytes"]})
    lines = [
        f"# Measured by `primepar profile` on {machine.date}:",
        f"# {machine.where}.",
        "# All processes work at once: a rate is what each one has while the others work.",
        "# Every number is fitted by linear regression to medians of several runs.",
        "# Units: bytes, seconds, operations per second, bytes per second.",
        "",
        f"name = {json.dumps(machine.name)}",
        "nodes = 1",
        f"devices_per_node = {machine.ranks}",
        f"memory = {machine.memory}    # measured: the machine's, for each process",
        *_device(samples, passes, products),
        f"overlap = {str(hidden >= HALF).lower()}    # measured: {_percent(hidden)} of a transfer "
        "hidden behind products",
        "",
        *_rates(machine, samples, products),
        "",
        *_links(machine, samples),
    ]
    for kind in KINDS:
        of_kind = _of(samples, (kind,))
        if of_kind:
            lines += ["", *_operator(kind, of_kind, products, samples)]
    return "\n".join(lines) + "\n"


def _of(samples: Sequence[Sample], names: Sequence[str]) -> list[Sample]:
    return [sample for sample in samples if sample.what in names]


def _device(samples: Sequence[Sample], passes: Fit, products: Fit) -> Iterator[str]:
    copies = _of(samples, ("pass",))
    yield f"# measured: copies of {_range_and_errors(copies, passes)}"
    yield f"memory_bandwidth = {_rate(passes, 'bytes', copies)}    # measured: the slope"
    yield f"launch = {products.seconds['starts']:.4g}    # measured: the intercept of products"


def _rates(machine: MeasuredMachine, samples: Sequence[Sample], fitted: Fit) -> Iterator[str]:
    products = _of(samples, ("product",))
    yield f"# measured: products of {_range_and_errors(products, fitted)}"
    achieved = _rate(fitted, "operations", products)
    best = max(sample.counts["operations"] / sample.seconds for sample in products)
    yield f"[rates.{machine.dtype}]"
    yield f"peak = {max(float(achieved), best):.4g}    # measured: the best of all products"
    yield f"achieved = {achieved}    # measured: the slope"
    points = product_points(products)
    if len(points) >= LEAST:
        known = curve(points)
        errors = [known.seconds(sample.counts["operations"]) / sample.seconds - 1
                  for sample in products]  # fmt: skip
        yield (
            f"products = {points_text(points)}    # measured: operations and operations a second; "
            f"off by {median(map(abs, errors)):.0%} in the median, {max(errors, key=abs):+.0%} "
            "at worst"
        )


def _links(machine: MeasuredMachine, samples: Sequence[Sample]) -> Iterator[str]:
    hops = _of(samples, ("hop", "hop to all"))
    fitted = fit(hops)
    yield from _by_group(hops, fitted)
    yield "[[links]]"
    yield f"joins = {machine.ranks}"
    yield from _line(hops, fitted)
    yield f"gap = {fitted.seconds.get('gaps', 0.0):.4g}    # measured: each further message at once"
    yield "shared = false"
    for name, kinds in RINGS.items():
        collectives = _of(samples, kinds)
        fitted = fit(collectives)
        yield ""
        yield from _by_group(collectives, fitted)
        yield f"[links.{name}]"
        yield from _line(collectives, fitted)
    yield from curve_lines(samples)


def _line(samples: Sequence[Sample], fitted: Fit) -> Iterator[str]:
    yield f"latency = {fitted.seconds['messages']:.4g}    # measured: the intercept"
    yield f"bandwidth = {_rate(fitted, 'bytes', samples)}    # measured: the slope"


def _by_group(samples: Sequence[Sample], fitted: Fit) -> Iterator[str]:
    """Median relative error of the times of each group of devices."""
    yield f"# measured: {_range_and_errors(samples, fitted)}"
    for name, group in groupby(zip(samples, fitted.errors, strict=True), key=_group):
        yield f"#   {name}: off by {median(error for _, error in group):+.0%}"


def _group(measured: tuple[Sample, float]) -> str:
    sample, _ = measured
    return f"{sample.what} over {sample.size.partition(', ')[0]}"


def _operator(
    kind: str, of_kind: Sequence[Sample], products: Fit, samples: Sequence[Sample]
) -> Iterator[str]:
    """The table of a kind of operators; products of attention take the times of products."""
    fitted = fit(of_kind, {"operations": products.seconds["operations"]})
    passes = _of(samples, ("pass",))
    yield f"# measured: {_range_and_errors(of_kind, fitted)}"
    yield f"[operators.{kind}]"
    yield f"launch = {fitted.seconds['starts']:.4g}    # measured: the intercept"
    yield f"memory_bandwidth = {_rate(fitted, 'bytes', passes)}    # measured: the slope"
    if any(sample.counts.get("scores") for sample in of_kind):
        yield f"scores = {_rate(fitted, 'scores', of_kind)}    # measured: the slope, per second"


def _rate(fitted: Fit, name: str, samples: Sequence[Sample]) -> str:
    """The fitted rate per second; the fastest sample's where the fitted time is 0."""
    rates = [sample.counts[name] / sample.seconds for sample in samples]
    if fitted.seconds[name] * max(rates) > UNSEEN:
        return f"{1 / fitted.seconds[name]:.4g}"
    return f"{max(rates):.4g}"


def _range_and_errors(samples: Sequence[Sample], fitted: Fit) -> str:
    kinds = [f"{len(list(group))} of {what}" for what, group in groupby(samples, key=_what)]
    sizes = f"{samples[0].size} to {samples[-1].size}" if len(kinds) == 1 else ", ".join(kinds)
    worst = max(fitted.errors, key=abs)
    return f"{sizes}; off by {fitted.error:.0%} in the median, {worst:+.0%} at worst"


def _what(sample: Sample) -> str:
    return sample.what


def _percent(part: float) -> str:
    return f"{max(0.0, min(1.0, part)):.0%}"
