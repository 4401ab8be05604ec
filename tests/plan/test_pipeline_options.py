"""Shards, recomputation, interleaving and buckets: prices against trying all, and against counts.

With HYPOTHESIS_PROFILE=ci there are 200 random cases instead of 8.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from command import run
from lowered_steps import lower_step
from msgspec.structs import replace as changed
from planner_cases import SMALL, TWO_LEVELS, UNTIED
from profiles import IS_LONG

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.partition.pipeline.actions import actions
from primepar.passes.liveness import sizes_of
from primepar.plan.search.exact_search import Exact
from primepar.plan.search.options import Numbers
from primepar.plan.search.planner import Planner
from primepar.plan.search.split_plan import split_plan
from primepar.plan.search.splits import (
    ChunkAim,
    Pipeline,
    Split,
    Splits,
    StagePart,
    step_seconds,
)
from primepar.plan.search.stage_cost import (
    EXECUTED,
    OptionChoices,
    Recompute,
    Shard,
    Stage,
    StageCost,
    TrainingOptions,
)

FOUR = replace(UNTIED, layers=4)
ONE = replace(SMALL, layers=1)
SHARDS = get_args(Shard)
RECOMPUTES: tuple[Recompute, ...] = (
    "none", "selective", "full", ("norm1", "attention"), ("qkv", "attention", "fc1"),
)  # fmt: skip


def splits(
    model: ModelConfig = FOUR, devices: int = 8, batch: int = 4, memory: float = 1e9,
    choices: OptionChoices = EXECUTED,
) -> Splits:  # fmt: skip
    machine = changed(TWO_LEVELS, memory=memory)
    return Splits(model, machine, devices, batch, "float32", "paper", choices=choices)


def few_options(planner: Planner, draw: random.Random) -> dict[object, Numbers]:
    """One option of most kinds of operators, and two of five kinds."""
    kinds = {planner.key(operator.name): operator.name for operator in planner.operators}
    several = draw.sample(list(kinds), 5)
    return {
        kind: np.array(draw.sample(range(len(planner.options(name))), 1 + (kind in several)))
        for kind, name in kinds.items()
    }


@pytest.mark.parametrize("seed", range(200 if IS_LONG else 8))
def test_the_optimum_is_that_of_trying_all_sequences(seed: int) -> None:
    """On one stage the search's cost, times the micro-batches, is the step of `Pipeline`."""
    draw = random.Random(seed)
    replicas, batches = draw.choice([1, 2, 3]), draw.choice([1, 2, 4])
    options = TrainingOptions(shard=draw.choice(SHARDS), recompute=draw.choice(RECOMPUTES))
    model = draw.choice([ONE, replace(ONE, tied=False)])
    planned = splits(model, 2 * replicas, 2 * replicas * batches)
    split = Split(1, replicas, 2)
    group = planned.group(split, 2)
    aim = ChunkAim(1 / batches, options.shard, options.recompute)
    planner = group.planner(StagePart(1, True, True), aim)
    among = few_options(planner, draw)

    def seconds(choices: dict[str, int]) -> float:
        stage = Stage.of(planner, choices)
        return Pipeline(planned.cluster, split, 2, batches, options, (StageCost(stage),)).seconds

    cost, numbers_of = Exact(planner, among).best
    lists = [among[planner.key(operator.name)].tolist() for operator in planner.operators]
    names = [operator.name for operator in planner.operators]
    least = min(seconds(dict(zip(names, numbers, strict=True))) for numbers in product(*lists))
    chosen = dict(zip(names, numbers_of, strict=True))
    assert seconds(chosen) == pytest.approx(least, rel=1e-12)
    assert cost * batches == pytest.approx(least, rel=1e-12)


def tried(planned: Splits, split: Split) -> list[Pipeline]:
    """All micro-batches and options of a split that training has."""
    every, shards = [], get_args(Shard)[:2]
    share = planned.batch // split.replicas
    for size in (size for size in range(1, share + 1) if not share % size):
        for shard, recompute, chunks in product(shards, RECOMPUTES, (1, 2)):
            if chunks == 2 and (split.stages != 2 or share // size % 2):
                continue
            options = TrainingOptions(
                shard=shard, recompute=recompute, chunks=chunks,
                schedule="1f1b" if chunks == 1 else "interleaved-1f1b",
            )  # fmt: skip
            every.append(planned.pipeline(split, size, options=options))
    return every


@pytest.mark.parametrize("memory", [1e9, 1.1e6, 7e5, 5e5])
@pytest.mark.parametrize("split", [Split(2, 2, 2), Split(1, 4, 2)])
def test_the_best_options_are_those_of_trying_all(split: Split, memory: float) -> None:
    planned = splits(memory=memory)
    best, every = planned.best(split), tried(planned, split)
    fitting = [pipeline.seconds for pipeline in every if pipeline.memory <= memory]
    if memory == 1e9:
        assert best.seconds == min(fitting)
    elif fitting:
        assert best.memory <= memory
        assert best.seconds <= min(fitting)  # or faster, with sequences that take less memory
    else:
        assert best.memory <= min(pipeline.memory for pipeline in every)


@pytest.mark.parametrize("shard", SHARDS)
def test_a_search_may_weigh_the_bytes_that_a_device_keeps(shard: Shard) -> None:
    """The plan of least seconds plus alpha times bytes, among two options of each of five kinds."""
    draw, alpha = random.Random(shard), 3e-9
    planned = splits(ONE, 4, 4)
    group = planned.group(Split(1, 2, 2), 2)
    planner = group.planner(StagePart(1, True, True), ChunkAim(1.0, shard, "none", alpha, 3))
    among = few_options(planner, draw)
    options = TrainingOptions(shard=shard)

    def cost(choices: dict[str, int]) -> float:
        chunk = StageCost(Stage.of(planner, choices))
        sizes = chunk.bytes(options)
        kept = sizes.parameters + sizes.gradients + sizes.states + 3 * sizes.stash
        return sum(chunk.seconds(options)) + alpha * kept

    lists = [among[planner.key(operator.name)].tolist() for operator in planner.operators]
    names = [operator.name for operator in planner.operators]
    least = min(cost(dict(zip(names, numbers, strict=True))) for numbers in product(*lists))
    assert Exact(planner, among).best[0] == pytest.approx(least, rel=1e-12)


def test_where_no_fastest_plan_fits_sequences_take_less_memory() -> None:
    split = Split(1, 2, 4)
    fastest = splits(choices=OptionChoices()).best(split)
    small = splits(choices=OptionChoices(), memory=1.05e6)
    tried = [small.pipeline(split, size) for size in (1, 2)]
    assert all(pipeline.memory > small.cluster.memory for pipeline in tried)
    best = small.best(split)
    assert best.memory <= small.cluster.memory
    assert best.seconds > fastest.seconds


def seconds_in_order(stages: int, batches: int, chunks: int) -> int:
    """Interleaved 1F1B action by action, where F, B and W of a chunk take a unit of time each."""
    ends: dict[tuple[str, int, int], int] = {}
    orders = [list(order) for order in actions("interleaved-1f1b", stages, batches, chunks)]
    free, last = [0] * stages, stages * chunks - 1
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, batch, number = order[0]
                chunk = number * stages + stage
                before = {"F": ("F", batch, chunk - 1), "B": ("W", batch, chunk + 1)}.get(kind)
                if (kind == "F" and chunk == 0) or (kind == "B" and chunk == last):
                    before = None
                if before is not None and before not in ends:
                    break
                order.pop(0)
                ready = 0 if before is None else ends[before]
                free[stage] = ends[kind, batch, chunk] = max(free[stage], ready) + 1
    return max(free)


@pytest.mark.parametrize(("stages", "batches", "chunks"), [(2, 4, 2), (3, 6, 3), (4, 4, 2)])
def test_a_step_of_equal_chunks_takes_what_interleaving_does(
    stages: int, batches: int, chunks: int
) -> None:
    took = step_seconds([3.0 * chunks] * stages, batches, chunks)
    assert took == seconds_in_order(stages, batches, chunks)


@pytest.mark.parametrize("split", [Split(2, 2, 2), Split(1, 3, 2)])
def test_a_plan_of_all_options_is_written_and_lowered(split: Split) -> None:
    devices = split.stages * split.replicas * split.parts
    model = replace(FOUR, context=8)
    planned = splits(model, devices, 4 * split.replicas)
    several = split.stages > 1
    options = TrainingOptions(
        shard="optimizer", recompute="full", chunks=1 + several,
        schedule="interleaved-1f1b" if several else "1f1b",
    )  # fmt: skip
    pipeline = planned.pipeline(split, 2, options=options)
    plan = split_plan(pipeline, model)
    assert (plan.ranks, plan.batch, plan.micro_batches) == (devices, 4 * split.replicas, 2)
    assert (plan.sharded_optimizer, plan.recompute) == (True, "full")
    program = lower_step(plan, plan.batch or 0, 8, passes=())
    assert program.ranks == devices
    size = sizes_of(program)
    moments = [sum(size(block) or 0 for block in blocks if ".m[" in block)
               for blocks in program.initial or ()]  # fmt: skip
    states = max(bytes_.states for bytes_ in pipeline.stage_bytes)
    assert max(moments) * 2 * 4 == pytest.approx(states, rel=0.02)  # tensors of 3 unequal shards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"chunks": 2},
            "chunks: expected 1 chunk of a stage under 1f1b, got 2: take interleaved-1f1b for "
            "several, 1f1b for one",
        ),
        (
            {"schedule": "interleaved-1f1b"},
            "chunks: expected 2 chunks or more of a stage under interleaved-1f1b, got 1: take "
            "interleaved-1f1b for several, 1f1b for one",
        ),
    ],
)
def test_options_that_contradict_one_another_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(PlanError) as caught:
        TrainingOptions(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--devices", "33"),
            "--devices: expected 1 to 32, the devices of the cluster 8 x 4 V100, as in the "
            "PrimePar paper, got 33: take 32",
        ),
        (
            ("--devices", "7"),
            "expected devices that are stages, at most 4, by replicas that divide the batch of 8, "
            "by at most 32 devices, a power of two, got 7: take 4, or another --batch",
        ),
        (
            ("--devices", "4", "--bucket", "25e6"),
            "--bucket: expected an option of primepar plan, got no such one: write nothing "
            "instead, as sums run during backward",
        ),
        (
            ("--devices", "4", "--row", "3"),
            "--row: expected an option of primepar plan, got no such one: write --pp STAGES --dp "
            "REPLICAS --tp DEVICES, which name the split",
        ),
        (
            ("--devices", "1", "--schedule", "interleaved-1f1b"),
            "expected layers for 2 stages of 2 chunks or more, and micro-batches in a multiple of "
            "the stages, for interleaved-1f1b, got 4 layers, a batch of 8 and 1 device: take "
            "--schedule 1f1b",
        ),
        (
            ("--devices", "2", "--shard", "gradients", "-o", "plan.json"),
            "expected options that a training step has, to write a plan, got gradients in shards, "
            "which are only priced: leave out -o, or that option",
        ),
    ],
)
def test_questions_without_an_answer_are_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path("docs/examples/config.json").resolve()
    monkeypatch.chdir(tmp_path)
    question = ("plan", str(config), "--cluster", "v100-8x4", "--objective", "splits")
    done = run(*question, *arguments)
    assert done == (2, "", f"primepar: error: {message}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_command_that_was_names_what_to_write() -> None:
    done = run("pipeline", "opt-175b", "--cluster", "v100-8x4")
    assert done.err.endswith(
        "got 'pipeline': write primepar plan MODEL --objective splits, with the same options\n"
    )
