"""Refusals of cluster files: every message has the TOML path, what came, and what to write.

Types and ranges are those of the fields, and msgspec checks them. What relates several values is
checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from primepar.errors import ClusterError, nearest
from primepar.plan.cluster_parts import (
    BYTES,
    KINDS,
    LARGEST,
    SMALLEST,
    Link,
    Moved,
    Passing,
    Points,
    Rate,
    Ring,
)

EXPECTED: Final = {
    "name": ("a name without control characters", '"8 x H200"'),
    "nodes": ("a whole number of nodes, from 1 to 1e9", "8"),
    "devices_per_node": ("a whole number of devices, from 1 to 1e9", "4"),
    "memory": ("the bytes of a device's memory, above 0", "3.2e10"),
    "memory_bandwidth": ("bytes per second of a device's memory, above 0", "9e11"),
    "host_bandwidth": ("bytes per second between a device and its host, above 0", "2.5e10"),
    "launch": ("the seconds that starting an operation takes, 0 or more", "5e-6"),
    "overlap": ("whether transfers overlap products", "true"),
    "rates": ("a table for each data type", "[rates.float32]"),
    "peak": ("operations per second, above 0", "1.57e13"),
    "achieved": ("operations per second, above 0 and at most the peak", "1.1e13"),
    "operators": ("a table for each kind of operator that has its own", "[operators.norm]"),
    "links": ("a table for each level of links, innermost first", "[[links]]"),
    "joins": ("a whole number of devices that this level joins, from 1 to 1e9", "4"),
    "latency": ("the seconds of a message, 0 or more", "1e-5"),
    "bandwidth": ("bytes per second one way, above 0", "2.5e10"),
    **dict.fromkeys(
        ("all_reduce", "all_gather"), ("a table with latency and bandwidth", "[links.all_reduce]")
    ),
    "shared": ("whether the devices of a group of the level below share it", "true"),
    "stream": ("bytes per second, above 0 and at most the bandwidth", "4.7e9"),
    "curves": ("two points or more, [bytes, bytes per second] each, above 0, by a number of "
               "devices, 2 or more", "8 = [[1e5, 1e9], [1e8, 2e10]]"),
    "products": ("two points or more, [operations, operations per second] each, above 0",
                 "products = [[1e9, 5e12], [1e12, 1e13]]"),
    "attention": ("two points or more, [tokens, operations per second] each, above 0",
                  "attention = [[512, 5e12], [8192, 1e13]]"),
    "scores": ("scores of attention per second, above 0", "3e8"),
    "gap": ("the seconds between two messages of a port, 0 or more", "1e-6"),
}  # fmt: skip
"""Field -> what it holds, and an example."""
STRUCTS: Final[dict[str, type[Struct]]] = {
    "all_reduce": Ring, "all_gather": Ring, "rates": Rate, "operators": Passing, "links": Link,
}  # fmt: skip
TABLES: Final = {"rates": BYTES, "operators": KINDS, "curves": get_args(Moved)}
"""Field whose tables have names -> those names."""


def wrong(place: str, got: object) -> ClusterError:
    """The error for a value: what its field expects, and an example."""
    key = next(word for word in reversed(re.findall(r"[a-z_]+", place)) if word in EXPECTED)
    if key in ("all_reduce", "all_gather") and ".curves" in place:
        key = "curves"
    expected, example = EXPECTED[key]
    write = example if "[" in example else f"{key} = {example}"
    return ClusterError(f"{place}: expected {expected}, got {got}: write {write}")


def refusal(message: str, values: dict[str, Any], cluster: type[Struct]) -> ClusterError:
    """An error of msgspec, rewritten as expected, got, where and what to write."""
    match = re.search(r" - at `(?:(key)` in `)?([^`]*)`", message)
    place = match[2] if match else "$"
    while "[...]" in place:  # msgspec reports no keys of tables
        place = place.replace("[...]", f".{_first_wrong(values, place, cluster)}", 1)
    missing = re.match(r"Object missing required field `(\w+)`", message)
    if missing:
        return wrong(f"{place}.{missing[1]}", "none")
    unknown = re.match(r"Object contains unknown field `([^`]*)`", message)
    if unknown or (match and match[1]):
        name = unknown[1] if unknown else _first_wrong(values, f"{place}[...]", cluster)
        table = next((table for key, table in STRUCTS.items() if f".{key}" in place), cluster)
        names = table.__struct_fields__ if unknown else TABLES.get(place.rpartition(".")[2])
        if names is None:  # a group of devices
            return wrong(place, repr(name))
        write = nearest(name, names) or (": leave it out" if unknown else ": write one of these")
        return ClusterError(f"{place}: expected one of {', '.join(names)}, got {name!r}{write}")
    got = _value_at(values, place)
    if isinstance(got, int | float) and 0 < got < inf and not SMALLEST <= got <= LARGEST:
        return ClusterError(
            f"{place}: expected a number from {SMALLEST:g} to {LARGEST:g}, got {got!r:.24}: "
            "correct its exponent"
        )
    if isinstance(got, str):
        return wrong(place, f"{got!r}, and numbers have no units here")
    return wrong(place, repr(got))


def _first_wrong(values: Any, place: str, cluster: type[Struct]) -> str:
    """The first wrong table of those at a place, up to its `[...]`: that which fails alone."""
    path = re.findall(r"\.([\w-]+)|\[(\d+)\]", place.partition("[...]")[0])
    tables = _value_at(values, place.partition("[...]")[0])
    for name in tables:
        alone = _with(values, path, {name: tables[name]})
        try:
            msgspec.convert(alone, cluster, str_keys=True)
        except msgspec.ValidationError:
            return str(name)
    raise AssertionError("one of the tables is wrong")


def _with(values: Any, path: list[tuple[str, str]], new: object) -> Any:
    """The values with another one at a path."""
    if not path:
        return new
    (key, index), *rest = path
    if key:
        return {**values, key: _with(values[key], rest, new)}
    changed = list(values)
    changed[int(index)] = _with(values[int(index)], rest, new)
    return changed


def _value_at(values: Any, place: str) -> Any:
    for key, index in re.findall(r"\.([\w-]+)|\[(\d+)\]", place):
        values = values[key] if key else values[int(index)]
    return values


def refuse_rates(rates: dict[str, Rate]) -> None:
    """Raise `ClusterError` for no rates, or more than the peak."""
    if not rates:
        raise wrong("$.rates", "none")
    for dtype, rate in rates.items():
        if rate.achieved > rate.peak:
            raise wrong(f"$.rates.{dtype}.achieved", f"{rate.achieved:g} of {rate.peak:g}")
        for key in ("products", "attention"):
            points: Points = getattr(rate, key) or ()
            refuse_points(f"$.rates.{dtype}.{key}", points)
            for number, (_, value) in enumerate(points):
                if value > rate.peak:
                    raise ClusterError(
                        f"$.rates.{dtype}.{key}[{number}]: expected at most the peak, "
                        f"{rate.peak:g} operations per second, got {value:g}: measure it again, "
                        "or correct the peak"
                    )


def refuse_points(place: str, points: Points) -> None:
    """Refuse points where sizes or seconds fall."""
    for number in range(1, len(points)):
        (before, slower), (after, faster) = points[number - 1 : number + 1]
        if after <= before:
            raise ClusterError(
                f"{place}[{number}]: expected a larger size than in the point before, {before:g}, "
                f"got {after:g}: sort the points by size, and write each size once"
            )
        if after / faster < before / slower:
            raise ClusterError(
                f"{place}[{number}]: expected a time that does not fall as sizes grow, got "
                f"{after / faster:.4g} s after {before / slower:.4g} s: write a rate of at most "
                f"{after * slower / before:.4g}, or leave the point out"
            )


def refuse_kinds(kinds: dict[str, Passing]) -> None:
    """Raise `ClusterError` for scores of another kind of operator than attention."""
    for kind, times in kinds.items():
        if times.scores is not None and kind != "attention":
            raise ClusterError(
                f"$.operators.{kind}.scores: expected scores of attention alone, got "
                f"{times.scores:g}: leave it out"
            )


def refuse_links(links: Sequence[Link], nodes: int, devices_per_node: int) -> None:
    """Raise `ClusterError` unless the levels join all devices, and streams fit their links."""
    joined, devices = 1, nodes * devices_per_node
    for level, link in enumerate(links):
        for place, points in _curves(link, f"$.links[{level}].curves"):
            refuse_points(place, points)
        if link.alone > link.bandwidth:
            raise wrong(f"$.links[{level}].stream", f"{link.alone:g} of {link.bandwidth:g}")
        if link.joins % joined or link.joins <= joined:
            raise ClusterError(
                f"$.links[{level}].joins: expected a multiple of the {joined} devices that the "
                f"level below joins, and more of them, got {link.joins}: write joins = {2 * joined}"
            )
        joined = link.joins
    if joined != devices:
        raise ClusterError(
            f"$.links: expected a last level that joins all {devices} devices, "
            f"{nodes} nodes of {devices_per_node}, got {joined}: write joins = {devices}"
        )


def _curves(link: Link, place: str) -> Iterator[tuple[str, Points]]:
    for moved, by_group in link.curves.items():
        for group, points in by_group.items():
            yield f"{place}.{moved}.{group}", points
