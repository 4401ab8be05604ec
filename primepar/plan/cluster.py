"""A cluster as a planner sees it: devices, their rates and memory, and links level by level.

Numbers are in bytes, seconds, operations per second and bytes per second. Links join devices level
by level, the innermost first. A level joins groups of the level below into groups of `joins`
devices: levels with `joins` 4 and 32 are nodes of 4 devices and a network of 8 nodes. Rank 0 is the
first device of the first node.
"""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from primepar.errors import ClusterError, nearest
from primepar.files import read_bytes

SHIPPED_CLUSTERS: Final = Path(__file__).parent / "clusters"
"""Folder of the shipped clusters; each file states the source of its numbers."""
BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of each data type."""
KINDS: Final = ("embedding", "norm", "attention", "activation", "add", "loss", "update")
"""Kinds of operators that a cluster may have times for; `update` is AdamW's, per parameter."""
Collective = Literal["all_reduce", "all_gather"]
"""Collectives that may have times of their own; a reduce-scatter takes those of an all-gather."""

_EXPECTED: Final = {
    "name": ("a name", '"8 x H200"'),
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
}


class Rate(Struct, frozen=True, forbid_unknown_fields=True):
    """Operations per second in one data type: `peak` by the data sheet, `achieved` in products."""

    peak: float
    achieved: float


class Ring(Struct, frozen=True, forbid_unknown_fields=True):
    """Collectives on one level: seconds for each step of a ring, and bytes per second."""

    latency: float
    bandwidth: float


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """One level of links, which joins groups of the level below into groups of `joins` devices.

    `bandwidth` is in one direction, per device; where it is `shared`, per group of the level below.
    A message takes `latency` plus its bytes over the bandwidth. A message that is alone on the link
    gets `stream` instead where that is given. All-reduces, and all-gathers with reduce-scatters,
    may have numbers of their own.
    """

    joins: int
    latency: float
    bandwidth: float
    shared: bool
    stream: float | None = None
    all_reduce: Ring | None = None
    all_gather: Ring | None = None

    @property
    def alone(self) -> float:
        """Bytes per second of one message at a time."""
        return self.bandwidth if self.stream is None else self.stream

    def ring(self, collective: Collective) -> tuple[float, float, float]:
        """Latency of a ring step of a collective, its bandwidth, and the bandwidth of one ring."""
        method: Ring | None = getattr(self, collective)
        if method is None:
            return self.latency, self.bandwidth, self.alone
        return method.latency, method.bandwidth, method.bandwidth


class Passing(Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one kind of memory-bound operators.

    An operation takes `launch` seconds, plus the bytes that it reads and writes over
    `memory_bandwidth`.
    """

    launch: float
    memory_bandwidth: float


class Cluster(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices of one kind, `devices_per_node` in each of `nodes`, and the links between them.

    Kinds that are not in `operators` take the times of `launch` and `memory_bandwidth`; updates
    then take no time.
    """

    name: str
    nodes: int
    devices_per_node: int
    memory: float
    memory_bandwidth: float
    launch: float
    overlap: bool
    rates: dict[str, Rate]
    links: tuple[Link, ...]
    operators: dict[str, Passing] = {}
    host_bandwidth: float | None = None
    """Bytes per second between a device and its host, one way; None where it is not known."""

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.nodes * self.devices_per_node

    def rate(self, dtype: str) -> Rate:
        """Rates of a data type. Raises `ClusterError`, naming those that the cluster has."""
        if dtype not in self.rates:
            raise ClusterError(
                f"expected a data type that the cluster {self.name} has rates of "
                f"({', '.join(self.rates)}), got {dtype}: take one of these, or add [rates.{dtype}]"
            )
        return self.rates[dtype]

    def passing(self, kind: str) -> Passing:
        """Times of memory-bound operators of a kind."""
        return self.operators.get(kind) or Passing(self.launch, self.memory_bandwidth)

    def check_devices(self, devices: int) -> None:
        """Raise `ClusterError` unless this number of devices can be planned here."""
        if not 1 <= devices <= self.devices or devices & (devices - 1):
            most = 1 << self.devices.bit_length() - 1
            raise ClusterError(
                f"--devices: expected a power of two, at most the {self.devices} devices of the "
                f"cluster {self.name}, got {devices}: "
                f"take {min(most, 1 << max(0, devices.bit_length() - 1))}"
            )


def shipped_clusters() -> list[str]:
    """Names of the clusters that are shipped."""
    return sorted(path.stem for path in SHIPPED_CLUSTERS.glob("*.toml"))


def load_cluster(name: str) -> Cluster:
    """Read a shipped cluster by its name, or a TOML file.

    Raises `ClusterError` with the TOML path of what is wrong, and what to write instead.
    """
    path = SHIPPED_CLUSTERS / f"{name}.toml"
    if Path(name).name != name or not path.is_file():
        path = Path(name)
    try:
        return read_cluster(read_bytes(path).decode())
    except OSError as error:
        raise ClusterError(
            f"{name}: expected a cluster file or one of {', '.join(shipped_clusters())}, got "
            f"{error.strerror}{nearest(name, shipped_clusters())}"
        ) from None
    except UnicodeDecodeError:
        raise ClusterError(f"{name}: expected TOML, got no text in UTF-8") from None
    except ClusterError as error:
        raise ClusterError(f"{name}: {error}") from None


def read_cluster(text: str) -> Cluster:
    """The cluster of a TOML text; raises `ClusterError`."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ClusterError(f"expected TOML, got broken text: {error}") from None
    try:
        cluster = msgspec.convert(values, Cluster)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), values) from None
    for place, got in _out_of_range(cluster):
        raise _wrong(place, got)
    _check_rates(cluster)
    _check_kinds(cluster)
    _check_streams(cluster)
    _check_links(cluster)
    return cluster


def _wrong(place: str, got: object) -> ClusterError:
    key = re.split(r"[.$\]]+", place)[-1]
    expected, example = _EXPECTED[key]
    write = example if example.startswith("[") else f"{key} = {example}"
    return ClusterError(f"{place}: expected {expected}, got {got}: write {write}")


def _refusal(message: str, values: dict[str, Any]) -> ClusterError:
    """An error of msgspec, rewritten as expected, got, where and what to write."""
    match = re.search(r" - at `([^`]*)`", message)
    place = match[1].replace("[...]", _first_wrong(values, match[1])) if match else "$"
    missing = re.match(r"Object missing required field `(\w+)`", message)
    if missing:
        return _wrong(f"{place}.{missing[1]}", "none")
    unknown = re.match(r"Object contains unknown field `([^`]*)`", message)
    if unknown:
        fields = _table(place).__struct_fields__
        near = get_close_matches(unknown[1], fields, n=1)
        write = f"write {near[0]}" if near else "leave it out"
        return ClusterError(
            f"{place}: expected one of {', '.join(fields)}, got {unknown[1]!r}: {write}"
        )
    got = _value_at(values, place)
    if isinstance(got, str):
        return _wrong(place, f"{got!r}, and numbers have no units here")
    return _wrong(place, repr(got))


def _table(place: str) -> type[Struct]:
    """The class that a TOML path is read as."""
    tables: dict[str, type[Struct]] = {"all_reduce": Ring, "all_gather": Ring, "rates": Rate,
                                       "operators": Passing, "links": Link}  # fmt: skip
    return next((kind for name, kind in tables.items() if f".{name}" in place), Cluster)


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


def _out_of_range(cluster: Cluster) -> list[tuple[str, float]]:
    """Path and value of every number that is not finite, or not above its lower bound."""
    numbers: list[tuple[str, float]] = []
    above = ("nodes", "devices_per_node", "memory", "memory_bandwidth")
    numbers += [(f"$.{key}", getattr(cluster, key)) for key in above]
    if cluster.host_bandwidth is not None:
        numbers.append(("$.host_bandwidth", cluster.host_bandwidth))
    for dtype, rate in cluster.rates.items():
        numbers += [(f"$.rates.{dtype}.{key}", getattr(rate, key)) for key in ("peak", "achieved")]
    for level, link in enumerate(cluster.links):
        numbers += [
            (f"$.links[{level}].{key}", getattr(link, key)) for key in ("joins", "bandwidth")
        ]
    for kind, passing in cluster.operators.items():
        numbers.append((f"$.operators.{kind}.memory_bandwidth", passing.memory_bandwidth))
    rings = [(f"$.links[{level}].{name}", getattr(link, name))
             for level, link in enumerate(cluster.links)
             for name in get_args(Collective)]  # fmt: skip
    numbers += [(f"{place}.bandwidth", ring.bandwidth) for place, ring in rings if ring]
    from_zero = [("$.launch", cluster.launch)]
    from_zero += [
        (f"$.operators.{kind}.launch", passing.launch)
        for kind, passing in cluster.operators.items()
    ]
    from_zero += [
        (f"$.links[{level}].latency", link.latency) for level, link in enumerate(cluster.links)
    ]
    from_zero += [(f"{place}.latency", ring.latency) for place, ring in rings if ring]
    wrong = [(place, got) for place, got in numbers if not 0 < got < float("inf")]
    return wrong + [(place, got) for place, got in from_zero if not 0 <= got < float("inf")]


def _check_rates(cluster: Cluster) -> None:
    if not cluster.rates:
        raise _wrong("$.rates", "none")
    for dtype, rate in cluster.rates.items():
        if dtype not in BYTES:
            raise ClusterError(
                f"$.rates: expected data types out of {', '.join(BYTES)}, got {dtype!r}: "
                f"write [rates.{(get_close_matches(dtype, BYTES, n=1) or ['float32'])[0]}]"
            )
        if rate.achieved > rate.peak:
            raise _wrong(f"$.rates.{dtype}.achieved", f"{rate.achieved:g} of {rate.peak:g}")


def _check_kinds(cluster: Cluster) -> None:
    for kind in cluster.operators:
        if kind not in KINDS:
            raise ClusterError(
                f"$.operators: expected kinds out of {', '.join(KINDS)}, got {kind!r}: "
                f"write [operators.{(get_close_matches(kind, KINDS, n=1) or ['norm'])[0]}]"
            )


def _check_streams(cluster: Cluster) -> None:
    for level, link in enumerate(cluster.links):
        if not 0 < link.alone <= link.bandwidth:
            raise _wrong(f"$.links[{level}].stream", f"{link.alone:g} of {link.bandwidth:g}")


def _check_links(cluster: Cluster) -> None:
    joined = 1
    for level, link in enumerate(cluster.links):
        if link.joins % joined or link.joins <= joined:
            raise ClusterError(
                f"$.links[{level}].joins: expected a multiple of the {joined} devices that the "
                f"level below joins, and more of them, got {link.joins}: write joins = {2 * joined}"
            )
        joined = link.joins
    if joined != cluster.devices:
        raise ClusterError(
            f"$.links: expected a last level that joins all {cluster.devices} devices, "
            f"{cluster.nodes} nodes of {cluster.devices_per_node}, got {joined}: "
            f"write joins = {cluster.devices}"
        )
