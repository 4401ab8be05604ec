"""Prices of shards, recomputation and buckets against what programs of steps hold and send."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from lowered_steps import lower_step
from msgspec.structs import replace as changed
from partitioned_cases import SHAPES
from pipelined_plans import POSITIONS
from planner_cases import TWO_LEVELS, UNTIED, cluster
from profiles import IS_LONG

from primepar.distributed.runtime.collectives import elements_sent
from primepar.models.config import ModelConfig
from primepar.models.graph import layer_operators
from primepar.passes.block_uses import Rank
from primepar.passes.liveness import sizes_of
from primepar.plan import Plan, preset_plan
from primepar.plan.cluster import Link, load_cluster
from primepar.plan.search.split_plan import split_plan
from primepar.plan.search.splits import Split, Splits
from primepar.plan.search.stage_cost import (
    Recompute,
    Shard,
    StageCost,
    TrainingOptions,
    seconds_for_parameters,
)
from primepar.plan.simulator.account import accounting
from primepar.plan.simulator.step import simulate_step
from primepar.schedule import Program
from primepar.schedule.program import Collective, Compute

FOUR = replace(UNTIED, layers=4, context=16)
SHARDS = get_args(Shard)


BYTES_A_SECOND = cluster(Link(8, 0.0, 1.0, False))
"""Devices that only transfer, a byte a second each: the seconds of sums are their bytes."""


def priced(plan: Plan, batch: int, positions: int) -> StageCost:
    """The cost of a plan as one stage."""
    model = replace(plan.model, context=positions)
    planned = Splits(model, BYTES_A_SECOND, plan.ranks, batch, "float32", "all")
    split = Split(1, 1, plan.ranks)
    return planned.pipeline(split, batch, lambda _: plan.sequences).chunks[0]


EVEN = {family: replace(shape, vocabulary=24) for family, shape in SHAPES.items()}
"""Models whose vocabulary needs no padding, which is for each operator separately in the search."""


@pytest.mark.parametrize("name", ["data", "M2,megatron", "megatron-sp", "primepar"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_states_and_the_sums_of_shards_are_those_counted(family: str, name: str) -> None:
    """ZeRO-1: bytes of moments, and those that a device sends of gradients and new parameters."""
    plan = changed(preset_plan(name, EVEN[family], 4), sharded_optimizer=True)
    program = lower_step(plan, 8, POSITIONS, passes=())
    size = sizes_of(program)
    moments = [sum(size(block) or 0 for block in blocks if ".m[" in block)
               for blocks in program.initial or ()]  # fmt: skip
    cost, options = priced(plan, 8, POSITIONS), TrainingOptions(shard="optimizer")
    assert max(moments) * 2 * 4 == cost.bytes(options).states
    sent = sum(
        elements_sent(node, 0, lambda block: size(block) or 0)
        for node in program.programs[0]
        if isinstance(node, Collective) and ".own[" in str(getattr(node, "block", ""))
    )
    assert 4 * sent == cost.seconds(options).reduction


def stash_counted(program: Program) -> int:
    """Elements of rank 0 where backward begins."""
    size, touched = sizes_of(program), Rank(0).touched
    live = set((program.initial or ((),))[0])
    for node in program.programs[0]:
        if isinstance(node, Compute) and str(node.phase) == "loss.backward":
            return sum(size(name) or 0 for name in live)
        used = touched(node)
        live.difference_update(used.gone)
        live.update(used.made)
    raise AssertionError("no backward of the loss")


CHOSEN: tuple[Recompute, ...] = ("selective", "full", ("norm1",), ("qkv", "attention"),
                                 ("proj", "add1", "norm2", "fc1"), ("act", "fc2"))  # fmt: skip
PRESETS = ("data", "megatron", "M2,megatron", "megatron-sp", "M2,megatron-sp", "summa")
FREED = [("gpt2", "megatron"), ("llama", "M2,megatron-sp")]


@pytest.mark.parametrize(
    ("family", "name"), list(product(SHAPES, PRESETS)) if IS_LONG else FREED
)  # fmt: skip
def test_recomputation_frees_the_bytes_that_are_counted(family: str, name: str) -> None:
    """Between forward and backward: with everything kept, less what is computed again."""
    plan = preset_plan(name, SHAPES[family], 4)
    positions, draw = plan.model.context, random.Random(name)
    cost = priced(plan, 8, positions)
    names, every = layer_operators(plan.model), [*CHOSEN]
    if IS_LONG:
        every += [tuple(draw.sample(names, draw.randint(1, 9))) for _ in range(20)]

    def counted(recompute: Recompute) -> int:
        again = changed(plan, recompute=recompute)
        return stash_counted(lower_step(again, 8, positions, passes=["free-early"]))

    kept, plain = cost.bytes(TrainingOptions()).stash, counted(("add2",))
    for recompute in every:
        freed = kept - cost.bytes(TrainingOptions(recompute=recompute)).stash
        assert freed == 4 * (plain - counted(recompute))
        assert freed > 0 or recompute not in CHOSEN


def test_all_operators_of_a_layer_are_full() -> None:
    """The lists of a step are equal, and so are the prices."""
    plan = preset_plan("megatron-sp", SHAPES["gpt2"], 4)
    names = layer_operators(plan.model)
    full, every = (changed(plan, recompute=recompute) for recompute in ("full", names))
    assert lower_step(full, 8, POSITIONS).programs == lower_step(every, 8, POSITIONS).programs
    cost = priced(plan, 8, POSITIONS)
    options = [TrainingOptions(recompute=recompute) for recompute in ("full", names)]
    assert cost.bytes(options[0]) == cost.bytes(options[1])
    assert cost.seconds(options[0]) == cost.seconds(options[1])


def test_states_are_in_equal_shards_where_devices_are_alike() -> None:
    cost = priced(preset_plan("data", SHAPES["gpt2"], 4), 8, POSITIONS)
    sizes = {shard: cost.bytes(TrainingOptions(shard=shard)) for shard in SHARDS}
    plain = sizes["none"]
    assert sizes["optimizer"] == plain._replace(states=plain.states / 4)
    gradients = sizes["gradients"]
    assert (gradients.gradients, gradients.states) == (plain.gradients / 4, plain.states / 4)
    assert gradients.parameters == plain.parameters
    assert sizes["parameters"].parameters == plain.parameters / 4
    assert sizes["parameters"].running > gradients.running > plain.running


def test_the_traffic_of_shards_is_that_of_zero() -> None:
    """Rajbhandari et al., section 7: that of an all-reduce, twice, and 3/2 of it."""
    cost = priced(preset_plan("data", SHAPES["llama"], 4), 8, POSITIONS)
    seconds = {shard: cost.seconds(TrainingOptions(shard=shard)) for shard in SHARDS}
    sent = {shard: took.communication + took.reduction for shard, took in seconds.items()}
    plain = seconds["none"].communication
    assert sent["optimizer"] == pytest.approx(sent["none"])
    assert sent["gradients"] == pytest.approx(sent["none"])
    assert sent["parameters"] - plain == pytest.approx(1.5 * (sent["none"] - plain))


@pytest.mark.parametrize(("on", "hidden"), [("v100-8x4", 512), ("h100-8", 512)])
def test_posted_sums_are_hidden_as_the_simulator_hides_them(on: str, hidden: int) -> None:
    """Data parallelism, whose sums the step's program posts as soon as they can begin."""
    machine, positions = load_cluster(on), hidden // 2
    model = ModelConfig.of(
        "gpt2", hidden=hidden, heads=8, layers=2, context=positions, vocabulary=4096
    )
    simulated = simulate_step(preset_plan("data", model, 4), 8, positions, machine, "float32")
    planned = Splits(model, machine, 4, 8, "float32", "paper", posted=True)
    pipeline = planned.pipeline(Split(1, 4, 1), 2)
    assert pipeline.seconds == pytest.approx(simulated.seconds, rel=0.1)
    for shard in SHARDS:
        (chunk,) = pipeline.chunks
        transfers = sum(seconds_for_parameters(chunk.terms._asdict(), shard))
        assert 0 < sum(chunk.hidden(shard)) < transfers


@pytest.mark.parametrize("split", [Split(1, 4, 1), Split(2, 1, 2), Split(2, 2, 1)])
def test_the_memory_of_a_pipeline_is_no_less_than_what_its_program_holds(split: Split) -> None:
    planned = Splits(FOUR, TWO_LEVELS, 4, 8, "float32", "paper")
    for options in (
        TrainingOptions(),
        TrainingOptions(shard="optimizer", recompute="full"),
        TrainingOptions(recompute="selective"),
        TrainingOptions(recompute=("attention", "act")),
    ):
        pipeline = planned.pipeline(split, 2, options=options)
        plan = split_plan(pipeline, FOUR)
        held = max(accounting(plan, 8, 16, "float32").held)
        assert held <= pipeline.memory < 1.5 * held
