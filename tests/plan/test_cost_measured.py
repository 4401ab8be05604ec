"""Numbers that a measured cluster has of its own: of collectives, of operators, of updates."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from primepar.models import ModelConfig, operators
from primepar.partition import parse_sequence
from primepar.plan import Plan
from primepar.plan.cluster import KINDS, Cluster, Link, Passing, Rate, Ring
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.simulator.operator_kinds import kind_of
from primepar.plan.simulator.run import simulate
from primepar.plan.simulator.step import simulate_step
from primepar.schedule import Linear, lower

FREE = Link(4, 0.0, 1e30, False)
CLUSTER = Cluster("links alone", 1, 4, 1e12, 1e30, 0.0, False, {"float32": Rate(1e30, 1e30)},
                  (replace(FREE, all_reduce=Ring(2, 8), all_gather=Ring(1, 4)),))  # fmt: skip
MODEL = ModelConfig.of("opt", layers=1, hidden=16, heads=4, context=8, vocabulary=64)


def seconds(cluster: Cluster) -> float:
    """The shortest step on one device."""
    return search(Planner.of(MODEL, cluster, 1, 2, None, "paper")).seconds


def test_collectives_take_the_times_of_their_level() -> None:
    links = ClusterLinks(CLUSTER, 2)
    assert links.all_reduce((0, 1), 32) == 6 * 2 + 1.5 * 32 / 8
    assert links.all_gather((0, 1), 32) == 3 * 1 + 3 * 32 / 4
    assert ClusterLinks(replace(CLUSTER, links=(FREE,)), 2).all_reduce((0, 1), 32) < 1e-20


def test_the_simulator_takes_them_too() -> None:
    program = lower(parse_sequence("N4"), Linear(M=2, N=4, K=4), ("forward",))
    ring = simulate(program, CLUSTER, "float32", fractions=True)
    assert float(ring.seconds) == pytest.approx(6 * 2 + 1.5 * 32 / 8)
    assert ring.sent == [48] * 4
    plain = simulate(program, replace(CLUSTER, links=(FREE,)), "float32")
    assert plain.seconds < 1e-20


def test_every_kind_of_operator_takes_its_own_time() -> None:
    one = replace(CLUSTER, nodes=1, devices_per_node=4)
    assert seconds(one) < 1e-20
    starts = {"embedding": 2, "norm": 6, "attention": 2, "activation": 2, "add": 2, "loss": 1}
    for kind, count in starts.items():
        slow = replace(one, operators={kind: Passing(1.0, inf)})
        assert seconds(slow) == pytest.approx(count)


@pytest.mark.parametrize("kind", [*KINDS])
def test_both_models_take_the_same_time_of_a_kind_on_one_device(kind: str) -> None:
    slow = replace(CLUSTER, links=(FREE,), operators={kind: Passing(1.0, 4.0)})
    plan = Plan(model=MODEL, ranks=1,
                sequences={operator.name: "" for operator in operators(MODEL)})  # fmt: skip
    simulated = simulate_step(plan, 2, MODEL.context, slow, "float32").seconds
    assert simulated == pytest.approx(seconds(slow), rel=1e-9)


def test_a_phase_is_of_the_operator_with_the_longest_name() -> None:
    bloom = ModelConfig.of("bloom", layers=1, hidden=16, heads=4, context=8, vocabulary=64)
    known = operators(bloom)
    assert kind_of("embedding.norm.weight.gradient", known) == "norm"
    assert kind_of("embedding.token.gradient", known) == "embedding"
    assert kind_of("embedding.token.m.update", known) == "update"
    assert kind_of("blocks.0.qkv.bias.gradient", known) == "linear"


def test_an_update_is_counted_for_every_parameter_where_it_is_known() -> None:
    shapes = MODEL.parameter_shapes
    launch = replace(CLUSTER, operators={"update": Passing(1.0, inf)})
    assert seconds(launch) == pytest.approx(len(shapes))
    passing = replace(CLUSTER, operators={"update": Passing(0.0, 4.0)})
    assert seconds(passing) == pytest.approx(MODEL.parameters)
