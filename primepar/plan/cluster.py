"""A cluster as a planner sees it: devices, their rates and memory, and links level by level.

Numbers are in bytes, seconds, operations per second and bytes per second. Links join devices level
by level, the innermost first. A level joins groups of the level below into groups of `joins`
devices: levels with `joins` 4 and 32 are nodes of 4 devices and a network of 8 nodes. Rank 0 is the
first device of the first node.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from primepar.errors import ClusterError, TextError, nearest
from primepar.files import reason
from primepar.plan.cluster_checks import (
    refusal,
    refuse_kinds,
    refuse_links,
    refuse_rates,
)
from primepar.plan.cluster_parts import (
    BYTES,
    KINDS,
    Collective,
    Count,
    DataType,
    Kind,
    Link,
    LinkTimes,
    Passing,
    Positive,
    Rate,
    Ring,
    Seconds,
    WorkTimes,
)
from primepar.reading import LARGEST_TOML, read_bytes, toml_of
from primepar.schedule.signature import Name

__all__ = [
    "BYTES",
    "KINDS",
    "SHIPPED_CLUSTERS",
    "Cluster",
    "Collective",
    "Link",
    "LinkTimes",
    "Passing",
    "Rate",
    "Ring",
    "WorkTimes",
    "load_cluster",
    "read_cluster",
    "shipped_clusters",
]

_SIZED: Final = re.compile(r"(?P<machine>.+)-(?P<devices>\d+)(?:x(?P<nodes>\d+))?")
SHIPPED_CLUSTERS: Final = Path(__file__).parent / "clusters"
"""Folder of the shipped clusters; each file states the source of its numbers."""


class Cluster(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices of one kind, `devices_per_node` in each of `nodes`, and the links between them.

    Kinds that are not in `operators` take the times of `launch` and `memory_bandwidth`; updates
    then take no time.
    """

    name: Name
    nodes: Count
    devices_per_node: Count
    memory: Positive
    memory_bandwidth: Positive
    launch: Seconds
    overlap: bool
    rates: dict[DataType, Rate]
    links: tuple[Link, ...]
    operators: dict[Kind, Passing] = {}
    host_bandwidth: Positive | None = None
    """Bytes per second between a device and its host, one way; None where it is not known."""

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.nodes * self.devices_per_node

    def of_nodes(self, nodes: int) -> Cluster:
        """The same machines, this number of them; its name has the sizes before that of a machine.

        The last level of links joins all of them. One node has no links between nodes. Of several
        nodes whose devices are no power of two, the next lower power of two of each is planned:
        64 of the 72 devices of a rack. Raises `ClusterError` for a number below 1, and for several
        nodes without links between them.
        """
        if nodes < 1:
            raise ClusterError(f"--nodes: expected 1 node or more, got {nodes}: write --nodes 1")
        inside = tuple(link for link in self.links if link.joins <= self.devices_per_node)
        machine = re.sub(r"^[\d x]+", "", self.name)  # without the sizes of the file
        machine = machine.partition(" and ")[0] if nodes == 1 else machine
        count = self.devices_per_node
        if nodes == 1:
            return replace(self, name=f"{count} x {machine}", nodes=1, links=inside)
        if inside == self.links:
            raise ClusterError(
                f"--nodes: expected 1 node, as the cluster {self.name} has no links between nodes, "
                f"got {nodes}: write a [[links]] with joins = {nodes * count}"
            )
        count = 1 << count.bit_length() - 1
        network = replace(self.links[-1], joins=nodes * count)
        levels = (replace(link, joins=min(link.joins, count)) for link in inside)
        return replace(
            self, name=f"{nodes} x {count} {machine}", nodes=nodes, devices_per_node=count,
            links=(*levels, network),
        )  # fmt: skip

    def level_between(self, first: int, second: int) -> int:
        """The innermost level of links that joins two devices."""
        levels = enumerate(self.links)
        return next(level for level, link in levels if first // link.joins == second // link.joins)

    def devices_behind(self, level: int) -> int:
        """Devices that share a port of a level."""
        return self.links[level - 1].joins if level and self.links[level].shared else 1

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


def load_cluster(name: str, nodes: int | None = None) -> Cluster:
    """Read a shipped cluster by its name, or a TOML file; of `nodes` nodes where that is given.

    A name may have sizes too: `h100-8x4` is 4 nodes of 8 H100, and `h100-8` is one. Raises
    `ClusterError` with the TOML path of what is wrong, and what to write instead.
    """
    path, sized = SHIPPED_CLUSTERS / f"{name}.toml", None
    if Path(name).name != name or not path.is_file():
        path, sized = Path(name), _SIZED.fullmatch(name)
        machine = SHIPPED_CLUSTERS / f"{sized['machine']}.toml" if sized else path
        if sized and not path.exists() and machine.is_file():
            path = machine
            nodes = int(sized["nodes"] or 1) if nodes is None else nodes
        else:
            sized = None
    try:
        cluster = read_cluster(read_bytes(path, LARGEST_TOML))
    except OSError as error:
        raise ClusterError(
            f"{name}: expected a cluster file or one of {', '.join(shipped_clusters())}, got "
            f"{reason(error)}{nearest(name, shipped_clusters())}"
        ) from None
    except ClusterError as error:
        raise ClusterError(f"{name}: {error}") from None
    if sized and int(sized["devices"]) != cluster.devices_per_node:
        raise ClusterError(
            f"{name}: expected nodes of {cluster.devices_per_node} devices, got "
            f"{sized['devices']}: write {sized['machine']}-{cluster.devices_per_node}x{nodes}"
        )
    if nodes is None and path.parent == SHIPPED_CLUSTERS and not cluster.name[0].isdigit():
        nodes = cluster.nodes  # a file of machines: its name has no sizes yet
    return cluster if nodes is None else cluster.of_nodes(nodes)


def read_cluster(text: str | bytes) -> Cluster:
    """The cluster of a TOML text; raises `ClusterError`."""
    try:
        values = toml_of(text if isinstance(text, bytes) else text.encode())
    except TextError as error:
        raise ClusterError(str(error)) from None
    try:
        cluster = msgspec.convert(values, Cluster, str_keys=True)
    except msgspec.ValidationError as error:
        raise refusal(str(error), values, Cluster) from None
    refuse_rates(cluster.rates)
    refuse_kinds(cluster.operators)
    refuse_links(cluster.links, cluster.nodes, cluster.devices_per_node)
    return cluster
