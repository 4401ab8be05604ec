"""Refusals of cluster files: every message has the TOML path, what came, and what to write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from primepar.errors import ClusterError
from primepar.plan.cluster_parts import BYTES, KINDS, Link, Moved, Passing, Rate, Ring

EXPECTED: Final = {
    "name": ("a name without control characters", '"8 x H200"'),
    "nodes": ("a whole number of nodes, 1 or more", "8"),
    "devices_per_node": ("a whole number of devices, 1 or more", "4"),
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
    "joins": ("a whole number of devices that this level joins, 1 or more", "4"),
    "latency": ("the seconds of a message, 0 or more", "1e-5"),
    "bandwidth": ("bytes per second one way, above 0", "2.5e10"),
    **dict.fromkeys(
        ("all_reduce", "all_gather"), ("a table with latency and bandwidth", "[links.all_reduce]")
    ),
    "shared": ("whether the devices of a group of the level below share it", "true"),
    "stream": ("bytes per second, above 0 and at most the bandwidth", "4.7e9"),
    "curves": ("a table for each collective that has curves", "[links.curves.all_reduce]"),
    "scores": ("scores of attention per second, above 0", "3e8"),
    "gap": ("the seconds between two messages of a port, 0 or more", "1e-6"),
}
"""Field -> what it holds, and an example."""
TABLES: Final[dict[str, type[Struct]]] = {"all_reduce": Ring, "all_gather": Ring, "rates": Rate,
                                          "operators": Passing, "links": Link}  # fmt: skip
FROM_ZERO: Final = ("launch", "latency", "gap")
"""Numbers that may be 0; all others are above it."""
UNITS: Final = {"products": ("operations", "operations per second", "[[1e9, 5e12], [1e12, 1e13]]"),
                "attention": ("tokens", "operations per second", "[[512, 5e12], [8192, 1e13]]"),
                "curves": ("bytes", "bytes per second", "[[1e5, 1e9], [1e8, 2e10]]")}  # fmt: skip
"""Field with points -> what a point has, and an example."""
SMALLEST, LARGEST = 1e-30, 1e30
"""Of numbers above 0. Costs multiply and divide a few of them, and no quotient may overflow: bytes
over 1e-320 bytes per second are infinite seconds, at which a simulation never arrives."""


def refuse_extremes(values: object, place: str = "$") -> None:
    """Raise `ClusterError` for the first number above 0 that no machine has."""
    if isinstance(values, dict | list):
        named = values.items() if isinstance(values, dict) else enumerate(values)
        for key, value in named:
            refuse_extremes(value, f"{place}.{key}" if isinstance(key, str) else f"{place}[{key}]")
    elif isinstance(values, int | float) and 0 < values < inf and not SMALLEST <= values <= LARGEST:
        raise ClusterError(
            f"{place}: expected a number from {SMALLEST:g} to {LARGEST:g}, got {values!r:.24}: "
            "correct its exponent"
        )


def refuse_curves(values: Mapping[str, Any]) -> None:
    """Raise `ClusterError` for the first wrong point, group or collective of a TOML's tables."""
    for dtype, rate in _tables(values.get("rates")):
        for key in ("products", "attention"):
            if key in rate:
                _refuse_points(f"$.rates.{dtype}.{key}", key, rate[key])
    links = values.get("links")
    for level, link in enumerate(links if isinstance(links, list) else ()):
        place = f"$.links[{level}].curves"
        for moved, by_group in _tables(link.get("curves") if isinstance(link, dict) else None):
            if moved not in get_args(Moved):
                near = (get_close_matches(moved, get_args(Moved), n=1) or ["all_reduce"])[0]
                raise ClusterError(
                    f"{place}: expected collectives out of {', '.join(get_args(Moved))}, got "
                    f"{moved!r}: write [links.curves.{near}]"
                )
            for group, points in by_group.items():
                if not group.isdecimal() or int(group) < 2:
                    raise ClusterError(
                        f"{place}.{moved}: expected a number of devices, 2 or more, for each "
                        f"curve, got {group!r}: write 8 = {UNITS['curves'][2]}"
                    )
                _refuse_points(f"{place}.{moved}.{group}", "curves", points)


def _tables(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of a table, by name; msgspec refuses what is none."""
    if isinstance(value, dict):
        yield from ((name, table) for name, table in value.items() if isinstance(table, dict))


def _refuse_points(place: str, key: str, points: object) -> None:
    """Refuse fewer than two points, and points where sizes or seconds fall."""
    size, rate, example = UNITS[key]
    if not isinstance(points, list) or len(points) < 2:
        got = len(points) if isinstance(points, list) else repr(points)
        raise ClusterError(
            f"{place}: expected two points or more, [{size}, {rate}] each, got {got}: write "
            f"{example}"
        )
    for number, point in enumerate(points):
        if not _is_point(point):
            raise ClusterError(
                f"{place}[{number}]: expected [{size}, {rate}], both above 0, got {point!r}: "
                f"write {example[1:].partition(']')[0]}]"
            )
    for number in range(1, len(points)):
        (before, slower), (after, faster) = points[number - 1 : number + 1]
        if after <= before:
            raise ClusterError(
                f"{place}[{number}]: expected more {size} than in the point before, {before:g}, "
                f"got {after:g}: sort the points by their {size}, and write each size once"
            )
        if after / faster < before / slower:
            raise ClusterError(
                f"{place}[{number}]: expected a time that does not fall as {size} grow, got "
                f"{after / faster:.4g} s after {before / slower:.4g} s: write a rate of at most "
                f"{after * slower / before:.4g}, or leave the point out"
            )


def _is_point(point: object) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(
        isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < inf
        for number in point
    )  # fmt: skip


def wrong(place: str, got: object) -> ClusterError:
    """The error for a value: what its field expects, and an example."""
    key = re.split(r"[.$\]]+", place)[-1]
    expected, example = EXPECTED[key]
    write = example if example.startswith("[") else f"{key} = {example}"
    return ClusterError(f"{place}: expected {expected}, got {got}: write {write}")


def refusal(message: str, values: dict[str, Any], cluster: type[Struct]) -> ClusterError:
    """An error of msgspec, rewritten as expected, got, where and what to write."""
    match = re.search(r" - at `([^`]*)`", message)
    place = match[1].replace("[...]", _first_wrong(values, match[1])) if match else "$"
    missing = re.match(r"Object missing required field `(\w+)`", message)
    if missing:
        return wrong(f"{place}.{missing[1]}", "none")
    unknown = re.match(r"Object contains unknown field `([^`]*)`", message)
    if unknown:
        fields = next((table for name, table in TABLES.items() if f".{name}" in place), cluster)
        names = fields.__struct_fields__
        near = get_close_matches(unknown[1], names, n=1)
        write = f"write {near[0]}" if near else "leave it out"
        return ClusterError(
            f"{place}: expected one of {', '.join(names)}, got {unknown[1]!r}: {write}"
        )
    got = _value_at(values, place)
    if isinstance(got, str):
        return wrong(place, f"{got!r}, and numbers have no units here")
    return wrong(place, repr(got))


def _first_wrong(values: dict[str, Any], place: str) -> str:
    """The first invalid table of a path, as `.float32`: msgspec does not report keys."""
    key, kind = ("rates", Rate) if ".rates" in place else ("operators", Passing)
    for name, table in values.get(key, {}).items():
        try:
            msgspec.convert(table, kind)
        except msgspec.ValidationError:
            return f".{name}"
    return ""


def _value_at(values: Any, place: str) -> Any:
    for key, index in re.findall(r"\.([\w-]+)|\[(\d+)\]", place):
        values = values[key] if key else values[int(index)]
    return values


def refuse_ranges(values: object, place: str = "$") -> None:
    """Raise `ClusterError` for the first number that is not finite, or below its least value.

    `values` are those of the file, of valid types; points are checked by `refuse_curves`.
    """
    if isinstance(values, dict):
        for key, value in values.items():
            if key == "stream":
                continue
            if isinstance(value, int | float) and not isinstance(value, bool):
                in_range = value >= 0 if key in FROM_ZERO else value > 0
                if not (in_range and value < inf):
                    raise wrong(f"{place}.{key}", value)
            elif key != "curves" and not (key in UNITS and isinstance(value, list)):
                refuse_ranges(value, f"{place}.{key}")
    elif isinstance(values, list):
        for number, value in enumerate(values):
            refuse_ranges(value, f"{place}[{number}]")


def refuse_rates(rates: Mapping[str, Rate]) -> None:
    """Raise `ClusterError` for no rates, an unknown data type, or more than the peak."""
    if not rates:
        raise wrong("$.rates", "none")
    for dtype, rate in rates.items():
        if dtype not in BYTES:
            raise ClusterError(
                f"$.rates: expected data types out of {', '.join(BYTES)}, got {dtype!r}: "
                f"write [rates.{(get_close_matches(dtype, BYTES, n=1) or ['float32'])[0]}]"
            )
        if rate.achieved > rate.peak:
            raise wrong(f"$.rates.{dtype}.achieved", f"{rate.achieved:g} of {rate.peak:g}")
        for key in ("products", "attention"):
            for number, (_, value) in enumerate(getattr(rate, key) or ()):
                if value > rate.peak:
                    raise ClusterError(
                        f"$.rates.{dtype}.{key}[{number}]: expected at most the peak, "
                        f"{rate.peak:g} operations per second, got {value:g}: measure it again, "
                        "or correct the peak"
                    )


def refuse_kinds(kinds: Mapping[str, Passing]) -> None:
    """Raise `ClusterError` for a kind of operator that is not known, or scores of another one."""
    for kind, times in kinds.items():
        if times.scores is not None and kind != "attention":
            raise ClusterError(
                f"$.operators.{kind}.scores: expected scores of attention alone, got "
                f"{times.scores:g}: leave it out"
            )
        if kind not in KINDS:
            raise ClusterError(
                f"$.operators: expected kinds out of {', '.join(KINDS)}, got {kind!r}: "
                f"write [operators.{(get_close_matches(kind, KINDS, n=1) or ['norm'])[0]}]"
            )


def refuse_links(links: Sequence[Link], nodes: int, devices_per_node: int) -> None:
    """Raise `ClusterError` unless the levels join all devices, and streams fit their links."""
    for level, link in enumerate(links):
        if not 0 < link.alone <= link.bandwidth:
            raise wrong(f"$.links[{level}].stream", f"{link.alone:g} of {link.bandwidth:g}")
    joined, devices = 1, nodes * devices_per_node
    for level, link in enumerate(links):
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
