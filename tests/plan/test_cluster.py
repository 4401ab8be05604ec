"""Cluster files: the shipped ones are read, and every wrong value is refused in one line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from primepar.errors import ClusterError
from primepar.plan.cluster import SHIPPED_CLUSTERS, load_cluster, read_cluster, shipped_clusters

GOOD = """\
name = "two nodes"
nodes = 2
devices_per_node = 2
memory = 1e9
memory_bandwidth = 1e11
launch = 1e-6
overlap = true

[rates.float32]
peak = 2e12
achieved = 1e12

[[links]]
joins = 2
latency = 1e-6
bandwidth = 1e10
shared = false

[[links]]
joins = 4
latency = 1e-5
bandwidth = 1e9
shared = true
"""


def refusal(text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        read_cluster(text)
    return str(caught.value)


@pytest.mark.parametrize(
    "path", sorted(SHIPPED_CLUSTERS.glob("*.toml")), ids=lambda path: path.stem
)
def test_a_shipped_cluster_is_read_by_its_name_and_as_a_file(path: Path) -> None:
    cluster = load_cluster(path.stem)
    assert cluster.rates == load_cluster(str(path)).rates
    assert cluster.links[-1].joins == cluster.devices


@pytest.mark.parametrize(
    ("name", "nodes", "sized", "joins"),
    [
        ("h100", 1, "8 x H100, NVLink", [8]),
        ("h100-8", None, "8 x H100, NVLink", [8]),
        ("h100-8x4", None, "4 x 8 H100, NVLink and NDR InfiniBand", [8, 32]),
        ("h100-8x4", 128, "128 x 8 H100, NVLink and NDR InfiniBand", [8, 1024]),
        ("gb200", 1, "72 x GB200, NVLink", [72]),
        ("gb200", 2, "2 x 64 GB200, NVLink and NDR InfiniBand", [64, 128]),
        ("v100-8x4", 2, "2 x 4 V100, as in the PrimePar paper", [4, 8]),
    ],
)
def test_a_cluster_has_the_nodes_that_are_asked_for(
    name: str, nodes: int | None, sized: str, joins: list[int]
) -> None:
    cluster = load_cluster(name, nodes)
    assert (cluster.name, [link.joins for link in cluster.links]) == (sized, joins)
    assert cluster.devices == joins[-1]


@pytest.mark.parametrize(
    ("name", "nodes", "message"),
    [
        ("h100", 0, "--nodes: expected 1 node or more, got 0: write --nodes 1"),
        ("cpu-gloo-4", 2,
         "--nodes: expected 1 node, as the cluster 4 processes on 2 cores has no links between "
         "nodes, got 2: write a [[links]] with joins = 8"),
        ("h100-4x2", None,
         "h100-4x2: expected nodes of 8 devices, got 4: write h100-8x2"),
    ],
)  # fmt: skip
def test_sizes_that_a_cluster_does_not_have(name: str, nodes: int | None, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        load_cluster(name, nodes)
    assert str(caught.value) == message


def test_the_table_of_machines_has_the_numbers_of_their_files() -> None:
    page = (Path(__file__).parents[2] / "docs/clusters.md").read_text()
    rows = page.partition("<!-- machines -->")[2].partition("\n\n")[0].strip().splitlines()[2:]
    machines = {row.split("`")[1]: [cell.strip() for cell in row.split("|")[2:-2]] for row in rows}
    assert set(machines) == set(shipped_clusters()) - {"v100-8x4", "torus-4x4", "cpu-gloo-4"}
    for name, cells in machines.items():
        cluster = read_cluster((SHIPPED_CLUSTERS / f"{name}.toml").read_text())
        rates = [cluster.rates.get(kind) for kind in ("bfloat16", "float8")]
        rates[0] = rates[0] or cluster.rates["float16"]
        assert cells == [
            str(cluster.devices_per_node), f"{cluster.memory / 1e9:.0f}",
            f"{cluster.memory_bandwidth / 1e12:.2f}",
            *(f"{rate.peak / 1e12:.0f} ({rate.achieved / 1e12:.0f})" if rate else ""
              for rate in rates),
            *(f"{link.bandwidth / 1e9:.0f}" for link in cluster.links),
        ], name  # fmt: skip


def test_every_number_of_a_shipped_cluster_has_its_source() -> None:
    for path in SHIPPED_CLUSTERS.glob("*.toml"):
        lines = path.read_text().splitlines()
        for before, line in pairwise(lines):
            key = line.partition(" = ")[0]
            if key.isdigit() or key in (
                "memory", "memory_bandwidth", "host_bandwidth", "launch", "peak", "achieved",
                "products", "attention", "latency", "bandwidth", "stream",
            ):  # fmt: skip
                assert "# " in line or before.startswith("# "), f"{path.stem}: {line}"


def test_the_sizes_of_a_cluster() -> None:
    cluster = read_cluster(GOOD)
    assert cluster.devices == 4
    assert cluster.rate("float32").achieved == 1e12


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory = 1e9\n", "",
         "$.memory: expected the bytes of a device's memory, above 0, got none: "
         "write memory = 3.2e10"),
        ("bandwidth = 1e9", "bandwidth = -1e9",
         "$.links[1].bandwidth: expected bytes per second one way, above 0, got -1000000000.0: "
         "write bandwidth = 2.5e10"),
        ("bandwidth = 1e9", 'bandwidth = "1 GB/s"',
         "$.links[1].bandwidth: expected bytes per second one way, above 0, got '1 GB/s', and "
         "numbers have no units here: write bandwidth = 2.5e10"),
        ("latency = 1e-6", "latency = nan",
         "$.links[0].latency: expected the seconds of a message, 0 or more, got nan: "
         "write latency = 1e-5"),
        ("latency = 1e-6", "latencey = 1e-6",
         "$.links[0]: expected one of joins, latency, bandwidth, shared, stream, all_reduce, "
         "all_gather, curves, gap, got 'latencey': write latency"),
        ("[[links]]\njoins = 4", "[links.all_gather]\nlatency = 1\n[[links]]\njoins = 4",
         "$.links[0].all_gather.bandwidth: expected bytes per second one way, above 0, got none: "
         "write bandwidth = 2.5e10"),
        ("[[links]]\njoins = 4",
         "[links.all_reduce]\nlatency = -1\nbandwidth = 1\n[[links]]\njoins = 4",
         "$.links[0].all_reduce.latency: expected the seconds of a message, 0 or more, got -1: "
         "write latency = 1e-5"),
        ("[[links]]\njoins = 4",
         "[links.all_reduce]\nlatency = 1\nbandwidht = 1\n[[links]]\njoins = 4",
         "$.links[0].all_reduce: expected one of latency, bandwidth, got 'bandwidht': write "
         "bandwidth"),
        ("nodes = 2", "nodes = 2.5",
         "$.nodes: expected a whole number of nodes, 1 or more, got 2.5: write nodes = 8"),
        ("nodes = 2", "nodes = 0",
         "$.nodes: expected a whole number of nodes, 1 or more, got 0: write nodes = 8"),
        ("overlap = true", "overlap = 1",
         "$.overlap: expected whether transfers overlap products, got 1: write overlap = true"),
        ("achieved = 1e12", "achieved = 3e12",
         "$.rates.float32.achieved: expected operations per second, above 0 and at most the peak, "
         "got 3e+12 of 2e+12: write achieved = 1.1e13"),
        ("peak = 2e12", 'peak = "2 TFLOPS"',
         "$.rates.float32.peak: expected operations per second, above 0, got '2 TFLOPS', and "
         "numbers have no units here: write peak = 1.57e13"),
        ("peak = 2e12\n", "",
         "$.rates.float32.peak: expected operations per second, above 0, got none: "
         "write peak = 1.57e13"),
        ("rates.float32", "rates.fp32",
         "$.rates: expected data types out of float64, float32, float16, bfloat16, float8, got "
         "'fp32': write [rates.float32]"),
        ("[rates.float32]\npeak = 2e12\nachieved = 1e12\n", "[rates]\n",
         "$.rates: expected a table for each data type, got none: write [rates.float32]"),
        ("bandwidth = 1e9", "bandwidth = 1e9\nstream = 2e9",
         "$.links[1].stream: expected bytes per second, above 0 and at most the bandwidth, got "
         "2e+09 of 1e+09: write stream = 4.7e9"),
        ("joins = 4", "joins = 3",
         "$.links[1].joins: expected a multiple of the 2 devices that the level below joins, and "
         "more of them, got 3: write joins = 4"),
        ("joins = 4", "joins = 8",
         "$.links: expected a last level that joins all 4 devices, 2 nodes of 2, got 8: "
         "write joins = 4"),
        ("[rates.float32]", "[operators.normm]\nlaunch = 0\nmemory_bandwidth = 1\n[rates.float32]",
         "$.operators: expected kinds out of embedding, norm, attention, activation, add, loss, "
         "update, join, got 'normm': write [operators.norm]"),
        ("[rates.float32]", "[operators.attention]\nlaunch = 0\nmemory_bandwidth = 1\nscores = 0\n"
         "[rates.float32]",
         "$.operators.attention.scores: expected scores of attention per second, above 0, got 0: "
         "write scores = 3e8"),
        ("[rates.float32]", "[operators.norm]\nlaunch = 0\nmemory_bandwidth = 1\nscores = 1\n"
         "[rates.float32]",
         "$.operators.norm.scores: expected scores of attention alone, got 1: leave it out"),
        ("[rates.float32]", "[operators.norm]\nlaunch = -1\nmemory_bandwidth = 1\n[rates.float32]",
         "$.operators.norm.launch: expected the seconds that starting an operation takes, 0 or "
         "more, got -1: write launch = 5e-6"),
        ("[rates.float32]", "[operators.norm]\nlaunch = 0\n[rates.float32]",
         "$.operators.norm.memory_bandwidth: expected bytes per second of a device's memory, above "
         "0, got none: write memory_bandwidth = 9e11"),
        ("[rates.float32]", "[operators.norm]\nlanch = 0\n[rates.float32]",
         "$.operators.norm: expected one of launch, memory_bandwidth, scores, got 'lanch': "
         "write launch"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_path_and_the_fix(
    old: str, new: str, message: str
) -> None:
    assert refusal(GOOD.replace(old, new)) == message


def test_what_is_no_toml_is_refused() -> None:
    assert refusal("nodes = ") == (
        "expected TOML, got broken text: Invalid value (at end of document)"
    )


def test_a_file_that_is_not_there_is_refused_with_the_shipped_clusters(tmp_path: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        load_cluster(f"{tmp_path}/none.toml")
    assert str(caught.value) == (
        f"{tmp_path}/none.toml: expected a cluster file or one of {', '.join(shipped_clusters())}, "
        "got no such file or directory"
    )


@pytest.mark.parametrize(("devices", "take"), [(0, 1), (3, 2), (8, 4)])
def test_devices_that_a_cluster_has_not_are_refused(devices: int, take: int) -> None:
    with pytest.raises(ClusterError) as caught:
        read_cluster(GOOD).check_devices(devices)
    assert str(caught.value) == (
        "--devices: expected a power of two, at most the 4 devices of the cluster two nodes, "
        f"got {devices}: take {take}" + ", or add --pp 1, for any number" * (devices == 3)
    )


def test_a_data_type_without_rates_is_refused() -> None:
    with pytest.raises(ClusterError) as caught:
        read_cluster(GOOD).rate("float16")
    assert str(caught.value) == (
        "expected a data type that the cluster two nodes has rates of (float32), got float16: "
        "take one of these, or add [rates.float16]"
    )
