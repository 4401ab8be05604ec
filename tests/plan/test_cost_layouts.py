"""Layouts as arrays are the plan's, and their link loads are what redistribution sends.

Experts, latent attention and causal scores in the price: hand-computed, and within bounds.

Numbers that a measured cluster has of its own: of collectives, of operators, of updates.
"""

from __future__ import annotations

from itertools import product
from math import inf
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from planner_cases import TWO_LEVELS

from primepar.errors import PlanError
from primepar.models.config import Experts, Latent, ModelConfig, PricedParts
from primepar.models.graph import operators
from primepar.models.sizes import MODELS
from primepar.operators.step import lower_step
from primepar.partition.registry import parse_sequence
from primepar.plan import Plan, preset_plan
from primepar.plan.cluster import Cluster, Link, Passing, Rate, Ring, read_cluster
from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.local_operators import all_to_all, expert_bits
from primepar.plan.kernels import kind_of
from primepar.plan.operator_layouts import ends_of
from primepar.plan.plan import load_plan, save_plan
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SequenceSpace, SpaceName
from primepar.plan.simulator.run import simulate
from primepar.plan.simulator.step import simulate_step
from primepar.schedule import Linear, lower
from primepar.schedule.layout import Layout, moved

ENDS = {"I": "input", "O": "output", "dI": "input_gradient"}


def layouts_of(candidate: Candidate) -> dict[str, Layout]:
    """The layouts of a sequence in a plan."""
    linear = "I" in candidate.spread
    layouts = ends_of("linear" if linear else "add", candidate.text)
    return {tensor: getattr(layouts, ENDS[tensor]) for tensor in (ENDS if linear else ("O",))}


def as_layout(candidate: Candidate, tensor: str) -> Layout:
    rows, columns = candidate.spread[tensor].rows, candidate.spread[tensor].columns
    held = [frozenset(product(rows.held(rank), columns.held(rank)))
            for rank in range(len(rows.values_D))]  # fmt: skip
    return Layout.of((rows.count, columns.count), held).coarsest()


@pytest.mark.parametrize("space", ["paper", "all"])
def test_a_sequence_leaves_its_tensors_in_the_layouts_of_a_plan(space: SpaceName) -> None:
    bits = 3 if space == "paper" else 2
    candidates = [*SequenceSpace.whole(space, bits).linear, *SequenceSpace.whole(space, bits).local]
    for candidate in candidates:
        for tensor, expected in layouts_of(candidate).items():
            layout = as_layout(candidate, tensor)
            assert (layout.grid, layout.held) == (expected.grid, expected.held), candidate.text


def test_what_moves_is_what_redistribution_sends() -> None:
    layouts, chosen = Layouts(ClusterLinks(TWO_LEVELS, 3)), Random(1)
    linear = SequenceSpace.whole("all", 3).linear
    pairs = [(chosen.choice(linear), chosen.choice(linear)) for _ in range(60)]
    for one, other in pairs:
        source, target = layouts.number(one.spread["O"]), layouts.number(other.spread["I"])
        assert source is not None
        assert target is not None
        ways = layouts.ways([source], [target])
        expected = moved(layouts_of(one)["O"], layouts_of(other)["I"])
        assert ways.moved_PQ[0, 0] == pytest.approx(float(expected)), (one.text, other.text)


def test_what_a_group_does_not_hold_comes_through_its_link() -> None:
    """Against a count device by device, cell by cell."""
    links = ClusterLinks(TWO_LEVELS, 3)
    layouts, chosen = Layouts(links), Random(2)
    candidates = SequenceSpace.whole("all", 3).linear
    for one, other in ((chosen.choice(candidates), chosen.choice(candidates)) for _ in range(60)):
        numbers = layouts.number(one.spread["O"]), layouts.number(other.spread["I"])
        ways = layouts.ways([numbers[0] or 0], [numbers[1] or 0])
        held = [cells(one, "O", rank) for rank in range(8)]
        wanted = [cells(other, "I", rank) - held[rank] for rank in range(8)]
        node = [set[tuple[int, int]]().union(*held[first : first + 4]) for first in (0, 4)]
        inside = [len(cells_ & node[rank // 4]) for rank, cells_ in enumerate(wanted)]
        through = [len(cells_ - node[rank // 4]) for rank, cells_ in enumerate(wanted)]
        assert ways.loads[0][0, 0] == pytest.approx(max(inside) / 64)
        assert ways.loads[1][0, 0] == pytest.approx(max(sum(through[:4]), sum(through[4:])) / 64)


def cells(candidate: Candidate, tensor: str, rank: int) -> set[tuple[int, int]]:
    """Cells of an 8 x 8 grid that a device has."""
    spread = candidate.spread[tensor]
    rows, columns = ([slice_ * 8 // held.count + part for slice_ in held.held(rank)
                      for part in range(8 // held.count)]
                     for held in (spread.rows, spread.columns))  # fmt: skip
    return set(product(rows, columns))


def test_the_paper_s_mlp_moves_half_between_activation_and_fc2() -> None:
    """fc1 {K,P2x2} -> relu {D,S,D} -> fc2 {N,P2x2}: 0, 0.5 forward; 0.5, 0 backward."""
    fc1, relu, fc2 = (ends_of("linear", "K2,P2x2"), ends_of("activation", "K2,M2,K2"),
                      ends_of("linear", "N2,P2x2"))  # fmt: skip
    assert moved(fc1.output, relu.input) == 0
    assert moved(relu.output, fc2.input) == 0.5
    assert moved(fc2.input_gradient, relu.output) == 0.5
    assert moved(relu.output, fc1.output) == 0


CLUSTER = """
name = "two nodes"
nodes = 2
devices_per_node = 8
memory = 1e12
memory_bandwidth = 1e30
launch = 0
overlap = true

[rates.float32]
peak = 1e12
achieved = 1e12

[[links]]
joins = 8
latency = 0
bandwidth = 1e10
shared = false

[[links]]
joins = 16
latency = 0
bandwidth = 1e9
shared = true
"""
SIZES = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 96, "context": 16, "vocabulary": 64}
ROUTED = PricedParts(experts=Experts(count=8, chosen=2, ffn=32))


def model(priced: PricedParts | None) -> ModelConfig:
    return ModelConfig.of("gpt", **SIZES, priced=priced)


def test_an_all_to_all_takes_the_slowest_level_with_the_bytes_that_cross_it() -> None:
    links = ClusterLinks(read_cluster(CLUSTER), 4)
    size = 8e9  # of each device: 4e9 leave its node, with those of seven others by one port
    assert all_to_all(links, (0, 1, 2, 3), size) == pytest.approx(8 * 4e9 / 1e9)
    assert all_to_all(links, (1, 2, 3), size) == pytest.approx(7e9 / 1e10)  # 7 / 8 to others
    assert all_to_all(links, (), size) == 0


def test_experts_are_spread_over_as_many_devices_as_divide_them() -> None:
    links = ClusterLinks(read_cluster(CLUSTER), 4)
    for count, bits in ((8, (1, 2, 3)), (64, (0, 1, 2, 3)), (12, (2, 3)), (1, ())):
        assert expert_bits(Experts(count=count, chosen=1, ffn=1), links) == bits
    assert expert_bits(Experts(count=8, chosen=1, ffn=1, spread=4), links) == (2, 3)
    with pytest.raises(PlanError) as caught:
        expert_bits(Experts(count=64, chosen=1, ffn=1, spread=32), links)
    assert str(caught.value) == (
        "expected experts over at most 16 devices, those of a replica of a stage, got 32: take "
        "--ep 16"
    )


def test_the_price_of_experts_is_that_of_their_products_and_of_the_dispatch() -> None:
    cluster, batch = read_cluster(CLUSTER), 16
    best = search(Planner.of(model(ROUTED), cluster, 16, batch, None, "paper"))
    options, number = best.planner.options("blocks.0.experts"), best.choices["blocks.0.experts"]
    tokens, item = batch * SIZES["context"] / 16, 4
    active = 2 * 2 * SIZES["hidden"] * 32 + SIZES["hidden"] * 8  # two experts, and the router
    assert options.terms["compute"][number] == pytest.approx(3 * 2 * tokens * active / 1e12)
    assert best.sequences["blocks.0.experts"].startswith("M")
    dispatch = tokens * 2 * SIZES["hidden"] * item * 7 / 8 / 1e10
    assert options.terms["communication"][number] == pytest.approx(4 * dispatch)
    # One expert of the eight on each device, the router on all of them.
    held = 2 * SIZES["hidden"] * 32 + SIZES["hidden"] * 8
    assert options.terms["parameters"][number] == pytest.approx(held * item)
    assert best.account is None
    assert best.sent == ()
    two = model(PricedParts(experts=Experts(count=8, chosen=2, ffn=32, spread=2)))
    over_two = Planner.of(two, cluster, 16, batch, None, "paper").options("blocks.0.experts")
    chosen = [option.text for option in over_two.candidates].index("M16")
    terms = {term: amounts[chosen] for term, amounts in over_two.terms.items()}
    assert terms["communication"] == pytest.approx(4 * dispatch * (1 / 2) / (7 / 8))
    assert terms["parameters"] == pytest.approx((held + 3 * 2 * SIZES["hidden"] * 32) * item)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b"])
def test_one_device_holds_and_computes_the_whole_model(name: str) -> None:
    """Of one device the price is that of all products; what it keeps is the whole model."""
    sizes = MODELS[name]
    cluster = read_cluster(CLUSTER.replace("memory = 1e12", "memory = 1e30"))
    planner = Planner.of(sizes, cluster, 1, 1, None, "paper")
    terms = {
        term: sum(float(planner.options(operator.name).terms[term][0]) for operator in
                  operators(sizes)) for term in ("compute", "parameters")
    }  # fmt: skip
    matrices = sum(active for _, active in sizes.layer_weights.values()) * sizes.layers
    linear = 6 * sizes.context * (matrices + sizes.hidden * sizes.vocabulary)
    # Scores and values, forward and 2.5 times as much backward, of all positions.
    products = sizes.heads * sizes.head_dim + sizes.merged_columns
    whole = 3.5 * 2 * sizes.layers * products * sizes.context * sizes.context
    assert terms["compute"] * 1e12 == pytest.approx(linear + whole, rel=2e-3)
    assert terms["parameters"] / 4 == pytest.approx(sizes.parameters, rel=2e-3)


def test_a_fused_kernel_skips_what_the_causal_mask_hides() -> None:
    attention = "attention = [[16, 1e12], [4096, 1e12]]"
    fused = read_cluster(CLUSTER.replace("achieved = 1e12\n", f"achieved = 1e12\n{attention}\n"))
    seconds = []
    for cluster in (fused, read_cluster(CLUSTER)):
        planner = Planner.of(model(None), cluster, 1, 1, None, "paper")
        seconds.append(planner.options("blocks.0.attention").seconds[0])
    assert seconds[0] / seconds[1] == pytest.approx((16 + 1) / 2 / 16)
    windowed = Planner.of(model(PricedParts(window=2, windowed=2)), fused, 1, 1, None, "paper")
    keys = windowed.options("blocks.0.attention").seconds[0] / seconds[1] * 16
    assert keys == pytest.approx((1 + 15 * 2) / 16)


@pytest.mark.parametrize(
    ("priced", "what"),
    [
        (PricedParts(experts=Experts(8, 2, 32, spread=2)), "experts over 2 devices"),
        (PricedParts(latent=Latent(16, 16, 8, 8), window=4, windowed=1),
         "latent attention and windows"),
    ],
)  # fmt: skip
def test_what_is_only_priced_is_planned_and_saved_but_not_run(
    tmp_path: Path, priced: PricedParts, what: str
) -> None:
    plan = preset_plan("data", model(priced), 2)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    with pytest.raises(PlanError) as caught:
        lower_step(plan, 2, 16)
    assert str(caught.value) == (
        f"plan: expected a model that a training step here has, got one with {what}, which is "
        "priced, not run: take a model without"
    )


FREE = Link(4, 0.0, 1e30, False)
LINKS_ALONE = Cluster("links alone", 1, 4, 1e12, 1e30, 0.0, False, {"float32": Rate(1e30, 1e30)},
                  (replace(FREE, all_reduce=Ring(2, 8), all_gather=Ring(1, 4)),))  # fmt: skip
MODEL = ModelConfig.of("opt", layers=1, hidden=16, heads=4, context=8, vocabulary=64)


def seconds(cluster: Cluster) -> float:
    """The shortest step on one device."""
    return search(Planner.of(MODEL, cluster, 1, 2, None, "paper")).seconds


def test_collectives_take_the_times_of_their_level() -> None:
    links = ClusterLinks(LINKS_ALONE, 2)
    assert links.all_reduce((0, 1), 32) == 6 * 2 + 1.5 * 32 / 8
    assert links.all_gather((0, 1), 32) == 3 * 1 + 3 * 32 / 4
    assert ClusterLinks(replace(LINKS_ALONE, links=(FREE,)), 2).all_reduce((0, 1), 32) < 1e-20


def test_the_simulator_takes_them_too() -> None:
    program = lower(parse_sequence("N4"), Linear(M=2, N=4, K=4), ("forward",))
    ring = simulate(program, LINKS_ALONE, "float32", fractions=True)
    assert float(ring.seconds) == pytest.approx(6 * 2 + 1.5 * 32 / 8)
    assert ring.sent == [48] * 4
    plain = simulate(program, replace(LINKS_ALONE, links=(FREE,)), "float32")
    assert plain.seconds < 1e-20


def test_every_kind_of_operator_takes_its_own_time() -> None:
    one = replace(LINKS_ALONE, nodes=1, devices_per_node=4)
    assert seconds(one) < 1e-20
    starts = {"embedding": 2, "norm": 6, "attention": 2, "activation": 2, "add": 2, "loss": 1}
    for kind, count in starts.items():
        slow = replace(one, operators={kind: Passing(1.0, inf)})
        assert seconds(slow) == pytest.approx(count)


@pytest.mark.parametrize("kind", ["norm", "activation", "add", "loss", "update"])
def test_price_and_simulator_count_the_same_kernels_of_a_kind(kind: str) -> None:
    slow = replace(LINKS_ALONE, links=(FREE,), operators={kind: Passing(1.0, 4.0)})
    plan = Plan(model=MODEL, ranks=1,
                sequences={operator.name: "" for operator in operators(MODEL)})  # fmt: skip
    simulated = simulate_step(plan, 1, MODEL.context, slow, "float32").seconds
    priced = search(Planner.of(MODEL, slow, 1, 1, None, "paper", posted=True)).seconds
    assert simulated == pytest.approx(priced, rel=1e-4)  # a norm's sum has one element more


def test_scores_of_attention_take_their_time_in_price_and_simulator() -> None:
    """Of 2 sequences of 8 tokens with 4 heads: 512 scores forward, two and a half as many back."""
    slow = replace(LINKS_ALONE, links=(FREE,), operators={"attention": Passing(0.0, inf, 2.0)})
    plan = Plan(model=MODEL, ranks=1,
                sequences={operator.name: "" for operator in operators(MODEL)})  # fmt: skip
    simulated = simulate_step(plan, 2, MODEL.context, slow, "float32").seconds
    assert simulated == pytest.approx(seconds(slow), rel=1e-9)
    assert simulated == pytest.approx(3.5 * 512 / 2)


def test_a_phase_is_of_the_operator_with_the_longest_name() -> None:
    bloom = ModelConfig.of("bloom", layers=1, hidden=16, heads=4, context=8, vocabulary=64)
    known = operators(bloom)
    assert kind_of("embedding.norm.weight.gradient", known) == "norm"
    assert kind_of("embedding.token.gradient", known) == "embedding"
    assert kind_of("embedding.token.m.update", known) == "update"
    assert kind_of("blocks.0.qkv.bias.gradient", known) == "linear"
