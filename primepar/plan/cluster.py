"""A cluster as a planner sees it: devices, their rates and memory, and links level by level.

Numbers are in bytes, seconds, operations per second and bytes per second. Links join devices level
by level, the innermost first: the first `joins` devices, then that many of these groups that the
next level's number is reached. Rank 0 is the first device of the first node.
"""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from primepar.errors import ClusterError
from primepar.files import read_bytes

SHIPPED_CLUSTERS: Final = Path(__file__).parent / "clusters"
"""Folder of the clusters that are shipped; each file tells where its numbers are from."""
BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of each data type."""
KINDS: Final = ("embedding", "norm", "attention", "activation", "add", "loss", "update")
"""Kinds of operators that a cluster may have times of; `update` is AdamW's, of each parameter."""
Collective = Literal["all_reduce", "all_gather"]
"""Collectives that may have times of their own; a reduce-scatter counts as an all-gather."""

_EXPECTED: Final = {
    "name": ("a name", '"8 x H200"'),
    "nodes": ("a whole number of nodes, 1 or more", "8"),
    "devices_per_node": ("a whole number of devices, 1 or more", "4"),
    "memory": ("the bytes of a device's memory, above 0", "3.2e10"),
    "memory_bandwidth": ("bytes per second of a device's memory, above 0", "9e11"),
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
    """Operations per second of one data type: of the data sheet, and of a large product."""

    peak: float
    achieved: float


class Ring(Struct, frozen=True, forbid_unknown_fields=True):
    """What collectives reach on a level: the latency of each turn of a ring, and its bandwidth."""

    latency: float
    bandwidth: float


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """One level of links, which joins groups of the level below into groups of `joins` devices.

    `bandwidth` is one way, of each device, or of each group of the level below where it is `shared`
    by its devices. A message takes `latency` and its bytes over the bandwidth, or over `stream`
    where that is given and it is alone. All-reduces, and all-gathers with reduce-scatters, may have
    numbers of their own.
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
        """Latency of a turn of a collective, its bandwidth, and what one ring alone reaches."""
        own: Ring | None = getattr(self, collective)
        if own is None:
            return self.latency, self.bandwidth, self.alone
        return own.latency, own.bandwidth, own.bandwidth


class Passing(Struct, frozen=True, forbid_unknown_fields=True):
    """How operators of one kind take their tensors through a device.

    An operation takes `launch` seconds, and its bytes over `memory_bandwidth`.
    """

    launch: float
    memory_bandwidth: float


class Cluster(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices of one kind, `devices_per_node` in each of `nodes`, and the links between them.

    Operators of a kind that is not among `operators` take what `launch` and `memory_bandwidth` say,
    and updates nothing.
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

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.nodes * self.devices_per_node

    def rate(self, dtype: str) -> Rate:
        """Rates of a data type. Raises `ClusterError` with those that the cluster has."""
        if dtype not in self.rates:
            raise ClusterError(
                f"expected a data type that the cluster {self.name} has rates of "
                f"({', '.join(self.rates)}), got {dtype}: take one of these, or add [rates.{dtype}]"
            )
        return self.rates[dtype]

    def passing(self, kind: str) -> Passing:
        """How operators of a kind take their tensors through a device."""
        return self.operators.get(kind) or Passing(self.launch, self.memory_bandwidth)

    def check_devices(self, devices: int) -> None:
        """Raise `ClusterError` unless that many devices can be planned here."""
        if not 1 <= devices <= self.devices or devices & (devices - 1):
            most = 1 << self.devices.bit_length() - 1
            raise ClusterError(
                f"--devices: expected a power of two, at most the {self.devices} devices of the "
                f"cluster {self.name}, got {devices}: "
                f"take {min(most, 1 << max(0, devices.bit_length() - 1))}"
            )


def shipped_clusters() -> list[str]:
    """Names of the clusters that are shipped."""
    return sorted(each.stem for each in SHIPPED_CLUSTERS.glob("*.toml"))


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
            f"{error.strerror}"
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
    """What msgspec says of a type, in the words of this house."""
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
    got = _at(values, place)
    if isinstance(got, str):
        return _wrong(place, f"{got!r}, and numbers have no units here")
    return _wrong(place, repr(got))


def _table(place: str) -> type[Struct]:
    """What stands at a place."""
    tables: dict[str, type[Struct]] = {"all_reduce": Ring, "all_gather": Ring, "rates": Rate,
                                       "operators": Passing, "links": Link}  # fmt: skip
    return next((kind for name, kind in tables.items() if f".{name}" in place), Cluster)


def _first_wrong(values: dict[str, Any], place: str) -> str:
    """`.float32`, the table that is not as it should be; msgspec does not tell a key."""
    key, kind = ("rates", Rate) if ".rates" in place else ("operators", Passing)
    for name, table in values.get(key, {}).items():
        try:
            msgspec.convert(table, kind)
        except msgspec.ValidationError:
            return f".{name}"
    return ""


def _at(values: Any, place: str) -> Any:
    for key, index in re.findall(r"\.([\w-]+)|\[(\d+)\]", place):
        values = values[key] if key else values[int(index)]
    return values


def _out_of_range(cluster: Cluster) -> list[tuple[str, float]]:
    """Path and value of every number that is not finite, or not above its bound."""
    numbers: list[tuple[str, float]] = []
    above = ("nodes", "devices_per_node", "memory", "memory_bandwidth")
    numbers += [(f"$.{key}", getattr(cluster, key)) for key in above]
    for dtype, rate in cluster.rates.items():
        numbers += [(f"$.rates.{dtype}.{key}", getattr(rate, key)) for key in ("peak", "achieved")]
    for at, link in enumerate(cluster.links):
        numbers += [(f"$.links[{at}].{key}", getattr(link, key)) for key in ("joins", "bandwidth")]
    for kind, own in cluster.operators.items():
        numbers.append((f"$.operators.{kind}.memory_bandwidth", own.memory_bandwidth))
    rings = [(f"$.links[{at}].{name}", getattr(link, name))
             for at, link in enumerate(cluster.links) for name in get_args(Collective)]  # fmt: skip
    numbers += [(f"{place}.bandwidth", ring.bandwidth) for place, ring in rings if ring]
    least = [("$.launch", cluster.launch)]
    least += [(f"$.operators.{kind}.launch", own.launch) for kind, own in cluster.operators.items()]
    least += [(f"$.links[{at}].latency", link.latency) for at, link in enumerate(cluster.links)]
    least += [(f"{place}.latency", ring.latency) for place, ring in rings if ring]
    wrong = [(place, got) for place, got in numbers if not 0 < got < float("inf")]
    return wrong + [(place, got) for place, got in least if not 0 <= got < float("inf")]


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
    for at, link in enumerate(cluster.links):
        if not 0 < link.alone <= link.bandwidth:
            raise _wrong(f"$.links[{at}].stream", f"{link.alone:g} of {link.bandwidth:g}")


def _check_links(cluster: Cluster) -> None:
    joined = 1
    for at, link in enumerate(cluster.links):
        if link.joins % joined or link.joins <= joined:
            raise ClusterError(
                f"$.links[{at}].joins: expected a multiple of the {joined} devices that the level "
                f"below joins, and more of them, got {link.joins}: write joins = {2 * joined}"
            )
        joined = link.joins
    if joined != cluster.devices:
        raise ClusterError(
            f"$.links: expected a last level that joins all {cluster.devices} devices, "
            f"{cluster.nodes} nodes of {cluster.devices_per_node}, got {joined}: "
            f"write joins = {cluster.devices}"
        )
