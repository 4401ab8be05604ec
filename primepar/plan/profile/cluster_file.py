"""The cluster file of measured times; its comments state what was measured and how well it fits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from primepar.plan.cluster import KINDS
from primepar.plan.curves import curve
from primepar.plan.profile.fit import Fit, Sample, fit
from primepar.plan.profile.measured_curves import LEAST, curve_lines, points_text, product_points

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
