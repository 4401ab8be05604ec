"""Experts, latent attention and causal scores in the price: hand-computed, and within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import operators
from primepar.models.priced_parts import Experts, Latent, PricedParts
from primepar.models.sizes import MODELS
from primepar.operators.step import lower_step
from primepar.plan import preset_plan
from primepar.plan.cluster import read_cluster
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.local_operators import all_to_all, expert_bits
from primepar.plan.plan import load_plan, save_plan
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search

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
        (ROUTED, "experts"),
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
