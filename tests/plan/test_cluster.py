"""Cluster files: the shipped ones are read, and every wrong value is refused in one line.

Curves of a cluster: exact at their points, never falling, and the same for costs and simulator.

`LINE` has the two-number line of each time, `MEASURED` curves instead of it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from primepar.errors import ClusterError
from primepar.models import ModelConfig, operators
from primepar.partition.registry import parse_sequence
from primepar.plan import Plan
from primepar.plan.cluster import (
    SHIPPED_CLUSTERS,
    Cluster,
    Link,
    Rate,
    load_cluster,
    read_cluster,
    shipped_clusters,
)
from primepar.plan.cluster_parts import curve
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.simulator.run import simulate
from primepar.plan.simulator.step import simulate_step
from primepar.schedule import Linear, lower

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
        ("bandwidth = 1e9", 'bandwidth = "1 GB/s"',
         "$.links[1].bandwidth: expected bytes per second one way, above 0, got '1 GB/s', and "
         "numbers have no units here: write bandwidth = 2.5e10"),
        ("latency = 1e-6", "latency = nan",
         "$.links[0].latency: expected the seconds of a message, 0 or more, got nan: "
         "write latency = 1e-5"),
        ("latency = 1e-6", "latencey = 1e-6",
         "$.links[0]: expected one of joins, latency, bandwidth, shared, stream, all_reduce, "
         "all_gather, curves, gap, got 'latencey': write latency"),
        ("[[links]]\njoins = 4",
         "[links.all_reduce]\nlatency = 1\nbandwidht = 1\n[[links]]\njoins = 4",
         "$.links[0].all_reduce: expected one of latency, bandwidth, got 'bandwidht': write "
         "bandwidth"),
        ("nodes = 2", "nodes = 0",
         "$.nodes: expected a whole number of nodes, from 1 to 1e9, got 0: write nodes = 8"),
        ("achieved = 1e12", "achieved = 3e12",
         "$.rates.float32.achieved: expected operations per second, above 0 and at most the peak, "
         "got 3e+12 of 2e+12: write achieved = 1.1e13"),
        ("rates.float32", "rates.fp32",
         "$.rates: expected one of float64, float32, float16, bfloat16, float8, got 'fp32': write "
         "one of these"),
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
         "$.operators: expected one of embedding, norm, attention, activation, add, loss, "
         "update, join, got 'normm': write norm"),
        ("[rates.float32]", "[operators.norm]\nlaunch = 0\nmemory_bandwidth = 1\nscores = 1\n"
         "[rates.float32]",
         "$.operators.norm.scores: expected scores of attention alone, got 1: leave it out"),
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
        f"got {devices}: take {take}"
    )


def test_a_data_type_without_rates_is_refused() -> None:
    with pytest.raises(ClusterError) as caught:
        read_cluster(GOOD).rate("float16")
    assert str(caught.value) == (
        "expected a data type that the cluster two nodes has rates of (float32), got float16: "
        "take one of these, or add [rates.float16]"
    )


PRODUCTS = ((1e3, 1e9), (1e5, 2e10), (1e8, 1e11))
BUS = ((1e3, 1e8), (1e6, 4e9))
LINE = Cluster("four", 1, 4, 1e12, 1e12, 1e-6, False, {"float32": Rate(2e11, 1e11)},
               (Link(4, 1e-6, 5e9, False),))  # fmt: skip
MEASURED = replace(
    LINE,
    rates={"float32": Rate(2e11, 1e11, products=PRODUCTS, attention=((4, 1e9), (64, 8e9)))},
    links=(Link(4, 1e-6, 5e9, False, curves={"all_reduce": {4: BUS}, "all_gather": {2: BUS},
                                             "message": {2: ((1e2, 1e7), (1e6, 4e9))}}),),
)  # fmt: skip
MODEL = ModelConfig.of("opt", layers=1, hidden=64, heads=4, context=16, vocabulary=64)
FILE = """\
name = "one"
nodes = 1
devices_per_node = 2
memory = 1e9
memory_bandwidth = 1e11
launch = 1e-6
overlap = true
[rates.float32]
peak = 2e12
achieved = 1e12
products = [[1e6, 1e11], [1e9, 1e12]]
attention = [[512, 1e11], [1024, 2e11]]
[[links]]
joins = 2
latency = 1e-6
bandwidth = 1e10
shared = false
[links.curves.all_reduce]
2 = [[1000, 1e8], [1000000, 5e9]]
"""


@st.composite
def measured(draw: st.DrawFn) -> tuple[tuple[float, float], ...]:
    """Points whose sizes grow and whose seconds do not fall."""
    sizes = sorted(draw(st.sets(st.integers(1, 10**12), min_size=2, max_size=8)))
    seconds = sorted(draw(st.lists(st.floats(1e-7, 1e3), min_size=len(sizes),
                                   max_size=len(sizes))))  # fmt: skip
    return tuple((float(size), size / time) for size, time in zip(sizes, seconds, strict=True))


@given(measured(), st.lists(st.floats(1, 1e13), min_size=2, max_size=12))
def test_seconds_never_fall_and_are_exact_at_the_points(
    points: tuple[tuple[float, float], ...], sizes: list[float]
) -> None:
    known = curve(points)
    for size, rate in points:
        assert known.seconds(size) == pytest.approx(size / rate, rel=1e-12)
    times = [known.seconds(size) for size in sorted(sizes)]
    assert all(later >= before * (1 - 1e-12) for before, later in pairwise(times))
    assert known.seconds_of(np.array(sorted(sizes))) == pytest.approx(times, rel=1e-9)


def test_the_example_of_the_format() -> None:
    known = curve(((1e6, 1e11), (4e6, 2e11)))
    assert [round(known.seconds(size) * 1e6, 9) for size in (1e5, 1e6, 2.5e6, 4e6, 8e6)] == [
        10, 10, 15, 20, 40,
    ]  # fmt: skip


def test_a_measured_product_includes_its_bytes_and_a_line_adds_them() -> None:
    """1e8 operations in 1 ms; 1e6 elements of 4 bytes pass in 4 us, 1e9 in 4 ms; 1 us to start."""
    by_line, by_curve = (
        Training(ClusterLinks(cluster, 0), "float32", 1, 16) for cluster in (LINE, MEASURED)
    )
    assert by_line.seconds(1e8, 1e6) == pytest.approx(1e-6 + 4e-6 + 1e-3)
    assert by_curve.seconds(1e8, 1e6) == pytest.approx(1e-3)
    assert by_curve.seconds(1e8, 1e9) == pytest.approx(4e-3 + 1e-6)
    assert by_curve.seconds(0, 1e6) == by_line.seconds(0, 1e6) == pytest.approx(5e-6)


def test_attention_has_the_rate_of_its_length() -> None:
    """16 tokens: 4 / 1e9 + (12 / 60) (64 / 8e9 - 4 / 1e9) = 4.8 ns, so 16 / 4.8 ns a second."""
    training = Training(ClusterLinks(MEASURED, 0), "float32", 1, 16)
    assert training.seconds(1e6, 0, "attention") == pytest.approx(1e6 * 4.8e-9 / 16)


def test_a_collective_takes_the_bus_bandwidth_of_its_size() -> None:
    """1e6 bytes on 4 devices: 1.5e6 are sent, at 4e9. Half of them: between 10 and 250 us."""
    links = ClusterLinks(MEASURED, 2)
    assert links.all_reduce((0, 1), 1e6) == pytest.approx(1.5e6 / 4e9)
    between = 1e-5 + (5e5 - 1e3) / (1e6 - 1e3) * (2.5e-4 - 1e-5)
    assert links.all_reduce((0, 1), 5e5) == pytest.approx(1.5 * between)
    assert links.all_reduce((0,), 1e6) == pytest.approx(1e6 / 4e9)
    assert links.all_gather((0, 1), 2.5e5) == pytest.approx(7.5e5 / 4e9)
    assert links.reduce_scatter((0, 1), 2.5e5) == links.all_gather((0, 1), 2.5e5)


def test_rings_that_share_a_port_take_longer_than_one_of_them() -> None:
    """Two devices of each node send 1e6 bytes each through a port of 5e9."""
    level = replace(MEASURED.links[0], joins=4, shared=True)
    cluster = replace(MEASURED, nodes=2, devices_per_node=2,
                      links=(Link(2, 0, 1e12, False), level))  # fmt: skip
    links = ClusterLinks(cluster, 2)
    assert links.all_reduce((0,), 1e6) == pytest.approx(1e6 / 2.5e9)
    assert links.all_reduce((0, 1), 1e6) == pytest.approx(1.5e6 / 4e9)


@pytest.mark.parametrize("sequence", ["N4", "N2,M2"])
@pytest.mark.parametrize("cluster", [LINE, MEASURED], ids=["line", "curves"])
def test_the_simulator_takes_the_same_seconds(cluster: Cluster, sequence: str) -> None:
    program = lower(parse_sequence(sequence), Linear(M=64, N=64, K=64), ("forward",))
    simulated = simulate(program, cluster, "float32")
    training = Training(ClusterLinks(cluster, 2), "float32", 1, 64)
    rows, share, bits = (64, 16, (0, 1)) if sequence == "N4" else (32, 32, (0,))
    product = training.seconds(2 * rows * share * 64, rows * share + share * 64 + rows * 64)
    reduction = training.links.all_reduce(bits, rows * 64 * 4)
    assert simulated.seconds == pytest.approx(product + reduction)
    exact = simulate(program, cluster, "float32", fractions=True).seconds
    assert isinstance(exact, Fraction)
    assert float(exact) == pytest.approx(simulated.seconds)


@pytest.mark.parametrize(("sequence", "bits"), [("N16", range(4)), ("N2,M8", range(1))])
def test_rings_between_nodes_take_the_same_seconds(sequence: str, bits: range) -> None:
    """Of 16 A100 in two nodes: a ring over all adapters, and eight that share them."""
    cluster, parts = load_cluster("a100-8x8"), 1 << len(bits)
    program = lower(parse_sequence(sequence), Linear(M=512, N=512, K=512), ("forward",))
    training = Training(ClusterLinks(cluster, 4), "bfloat16", 1, 512)
    rows, share = 512 * parts // 16, 512 // parts
    product = training.seconds(2 * rows * share * 512, rows * share + share * 512 + rows * 512)
    reduction = training.links.all_reduce(bits, rows * 512 * 2)
    simulated = simulate(program, cluster, "bfloat16").seconds
    assert simulated == pytest.approx(product + reduction)


def test_a_step_takes_the_same_seconds_on_one_device() -> None:
    plan = Plan(model=MODEL, ranks=1,
                sequences={operator.name: "" for operator in operators(MODEL)})  # fmt: skip
    fast = replace(MEASURED, launch=0.0, memory_bandwidth=1e30)
    simulated = simulate_step(plan, 2, MODEL.context, fast, "float32").seconds
    assert simulated == pytest.approx(
        search(Planner.of(MODEL, fast, 1, 2, None, "paper")).seconds, rel=1e-9
    )


@pytest.mark.parametrize("name", shipped_clusters())
def test_every_time_of_a_shipped_cluster_grows_with_its_size(name: str) -> None:
    cluster = load_cluster(name)
    sizes = np.geomspace(1e3, 1e12, 200)
    for dtype in cluster.rates:
        training = Training(ClusterLinks(cluster, 0), dtype, 1, 1024)
        times = [training.seconds(size, 0) for size in sizes]
        assert all(later >= before for before, later in pairwise(times))
    links = ClusterLinks(cluster, cluster.devices.bit_length() - 1)
    for bits in ((0,), tuple(range(links.bits))):
        times = [links.all_reduce(bits, size) for size in sizes]
        assert all(later >= before * (1 - 1e-12) for before, later in pairwise(times))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[1e9, 1e12]]", "[1e9, 3e14]]",
         "$.rates.float32.products[1]: expected a time that does not fall as sizes grow, got "
         "3.333e-06 s after 1e-05 s: write a rate of at most 1e+14, or leave the point out"),
        ("[1e9, 1e12]]", "[1e6, 1e12]]",
         "$.rates.float32.products[1]: expected a larger size than in the point before, 1e+06, "
         "got 1e+06: sort the points by size, and write each size once"),
        ("[512, 1e11]", "[-512, 1e11]",
         "$.rates.float32.attention[0][0]: expected two points or more, [tokens, operations per "
         "second] each, above 0, got -512: write attention = [[512, 5e12], [8192, 1e13]]"),
        ("[1e9, 1e12]]", "[1e9, 3e12]]",
         "$.rates.float32.products[1]: expected at most the peak, 2e+12 operations per second, got "
         "3e+12: measure it again, or correct the peak"),
        ("[1000000, 5e9]", "[1000000, 5e12]",
         "$.links[0].curves.all_reduce.2[1]: expected a time that does not fall as sizes grow, got "
         "2e-07 s after 1e-05 s: write a rate of at most 1e+11, or leave the point out"),
        ("2 = [[1000", "one = [[1000",
         "$.links[0].curves.all_reduce: expected two points or more, [bytes, bytes per second] "
         "each, above 0, by a number of devices, 2 or more, got 'one': write 8 = [[1e5, 1e9], "
         "[1e8, 2e10]]"),
        ("curves.all_reduce", "curves.allreduce",
         "$.links[0].curves: expected one of all_reduce, all_gather, reduce_scatter, all_to_all, "
         "message, got 'allreduce': write all_reduce"),
    ],
)  # fmt: skip
def test_a_wrong_curve_is_refused_with_its_path_and_the_fix(
    old: str, new: str, message: str
) -> None:
    assert read_cluster(FILE).links[0].curves["all_reduce"][2][0] == (1000.0, 1e8)
    with pytest.raises(ClusterError) as caught:
        read_cluster(FILE.replace(old, new))
    assert str(caught.value) == message
