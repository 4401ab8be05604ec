"""The cluster file of measured times, whose comments say what was measured and how well it fits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from primepar.plan.cluster import KINDS
from primepar.plan.profile.fit import Fit, Sample, fit

RINGS = {"all_reduce": ("all-reduce",), "all_gather": ("all-gather", "reduce-scatter")}
"""Collectives with numbers of their own -> what tells them."""
HALF = 0.5
"""Transfers overlap products where at least this part of the shorter time is hidden."""

UNSEEN = 1e-6
"""What takes less of every time than this part is rounding."""


@dataclass(frozen=True)
class MeasuredMachine:
    """What was measured: so many processes at once, each with `memory` bytes, in one data type."""

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
        f"# Measured by `primepar plan --profile` on {machine.date}:",
        f"# {machine.where}.",
        "# All processes work at once: a rate is what each one has beside the others.",
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
        own = _of(samples, (kind,))
        if own:
            lines += ["", *_operator(kind, own, products, samples)]
    return "\n".join(lines) + "\n"


def _of(samples: Sequence[Sample], names: Sequence[str]) -> list[Sample]:
    return [each for each in samples if each.what in names]


def _device(samples: Sequence[Sample], passes: Fit, products: Fit) -> Iterator[str]:
    own = _of(samples, ("pass",))
    yield f"# measured: copies of {_told(own, passes)}"
    yield f"memory_bandwidth = {_rate(passes, 'bytes', own)}    # measured: the slope"
    yield f"launch = {products.seconds['starts']:.4g}    # measured: the intercept of products"


def _rates(machine: MeasuredMachine, samples: Sequence[Sample], found: Fit) -> Iterator[str]:
    products = _of(samples, ("product",))
    yield f"# measured: products of {_told(products, found)}"
    achieved = _rate(found, "operations", products)
    best = max(each.counts["operations"] / each.seconds for each in products)
    yield f"[rates.{machine.dtype}]"
    yield f"peak = {max(float(achieved), best):.4g}    # measured: the best of all products"
    yield f"achieved = {achieved}    # measured: the slope"


def _links(machine: MeasuredMachine, samples: Sequence[Sample]) -> Iterator[str]:
    hops = _of(samples, ("hop", "hop to all"))
    found = fit(hops)
    yield from _by_group(hops, found)
    yield "[[links]]"
    yield f"joins = {machine.ranks}"
    yield from _line(hops, found)
    yield "shared = false"
    for name, sorts in RINGS.items():
        own = _of(samples, sorts)
        found = fit(own)
        yield ""
        yield from _by_group(own, found)
        yield f"[links.{name}]"
        yield from _line(own, found)


def _line(samples: Sequence[Sample], found: Fit) -> Iterator[str]:
    yield f"latency = {found.seconds['messages']:.4g}    # measured: the intercept"
    yield f"bandwidth = {_rate(found, 'bytes', samples)}    # measured: the slope"


def _by_group(samples: Sequence[Sample], found: Fit) -> Iterator[str]:
    """How far the times of each group of devices are off."""
    yield f"# measured: {_told(samples, found)}"
    for name, own in groupby(zip(samples, found.errors, strict=True), key=_group):
        yield f"#   {name}: off by {median(error for _, error in own):+.0%}"


def _group(measured: tuple[Sample, float]) -> str:
    sample, _ = measured
    return f"{sample.what} over {sample.size.partition(', ')[0]}"


def _operator(
    kind: str, own: Sequence[Sample], products: Fit, samples: Sequence[Sample]
) -> Iterator[str]:
    """Its starts and bytes; products of attention take what products take."""
    found = fit(own, {"operations": products.seconds["operations"]})
    passes = _of(samples, ("pass",))
    yield f"# measured: {_told(own, found)}"
    yield f"[operators.{kind}]"
    yield f"launch = {found.seconds['starts']:.4g}    # measured: the intercept"
    yield f"memory_bandwidth = {_rate(found, 'bytes', passes)}    # measured: the slope"


def _rate(found: Fit, name: str, samples: Sequence[Sample]) -> str:
    """How many a second; where they were not seen to take time, the most of a sample."""
    done = [each.counts[name] / each.seconds for each in samples]
    if found.seconds[name] * max(done) > UNSEEN:
        return f"{1 / found.seconds[name]:.4g}"
    return f"{max(done):.4g}"


def _told(samples: Sequence[Sample], found: Fit) -> str:
    kinds = [f"{len(list(own))} of {what}" for what, own in groupby(samples, key=_what)]
    sizes = f"{samples[0].size} to {samples[-1].size}" if len(kinds) == 1 else ", ".join(kinds)
    worst = max(found.errors, key=abs)
    return f"{sizes}; off by {found.error:.0%} in the median, {worst:+.0%} at worst"


def _what(sample: Sample) -> str:
    return sample.what


def _percent(part: float) -> str:
    return f"{max(0.0, min(1.0, part)):.0%}"
