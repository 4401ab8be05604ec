"""Stages by replicas by tensor parallelism: the arithmetic by hand, the parts by the planner.

Shards, recomputation, interleaving and buckets: prices against trying all, and against counts.

With HYPOTHESIS_PROFILE=ci there are 200 random cases instead of 8.
"""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from functools import cache
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
from primepar.models.graph import operators
from primepar.partition.pipeline.actions import actions
from primepar.partition.pipeline.formulas import peak_stashes
from primepar.passes.liveness import sizes_of
from primepar.plan.cluster import Cluster, Passing
from primepar.plan.pipeline_layout import layer_of, layers_by_stage
from primepar.plan.search.options import Numbers
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.result import Given
from primepar.plan.search.row import PlanRow, Split, step_seconds
from primepar.plan.search.search import Exact, search
from primepar.plan.search.splits import (
    ChunkAim,
    Splits,
    StagePart,
    all_splits,
)
from primepar.plan.search.stage_cost import (
    EVERY_CHOICE,
    PLAIN,
    OptionChoices,
    Recompute,
    Shard,
    Stage,
    StageCost,
    TrainingOptions,
)

FOUR = replace(UNTIED, layers=4)


def splits(
    model: ModelConfig = FOUR, devices: int = 4, batch: int = 4, part: Part = "model",
    cluster: Cluster = TWO_LEVELS, posted: bool = False,
) -> Splits:  # fmt: skip
    return Splits(model, cluster, devices, batch, "float32", "paper", part, posted=posted)


def one_by_one(stages: int, microbatches: int, forward: float, backward: float) -> float:
    """1F1B event by event: every phase waits for its stage's last one and for its neighbour's."""
    order = []
    for stage in range(stages):
        warm = min(stages - stage, microbatches)
        rest = [(phase, number + (phase == "F") * warm) for number in range(microbatches)
                for phase in ("B", "F")]  # fmt: skip
        order.append([*(("F", number) for number in range(warm)),
                      *(item for item in rest if item[1] < microbatches)])  # fmt: skip
    ends: dict[tuple[str, int, int], float] = {}
    free, number = [0.0] * stages, [0] * stages
    while any(place < len(line) for place, line in zip(number, order, strict=True)):
        for stage in range(stages):
            if number[stage] == len(order[stage]):
                continue
            phase, microbatch = order[stage][number[stage]]
            before = stage - 1 if phase == "F" else stage + 1
            outside = before in (-1, stages)
            if not outside and (phase, before, microbatch) not in ends:
                continue
            ready = 0.0 if outside else ends[phase, before, microbatch]
            took = forward if phase == "F" else backward
            free[stage] = ends[phase, stage, microbatch] = max(free[stage], ready) + took
            number[stage] += 1
    return max(ends.values())


@pytest.mark.parametrize(("stages", "microbatches"), [*product((1, 2, 3, 4), (1, 2, 3, 8))])
def test_a_step_of_equal_stages_takes_what_1f1b_does(stages: int, microbatches: int) -> None:
    took = step_seconds([3.0] * stages, microbatches)
    assert took == one_by_one(stages, microbatches, 1.0, 2.0)
    assert took == pytest.approx(3.0 * microbatches * (1 + (stages - 1) / microbatches))


def test_the_stashes_and_a_slow_stage_by_hand() -> None:
    assert [peak_stashes("1f1b", stage, 4, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert [peak_stashes("1f1b", stage, 4, 2) for stage in range(4)] == [2, 2, 2, 1]
    # the slowest stage takes 5 microbatches one by one, and the first goes through the others
    assert step_seconds([1.0, 2.0, 1.5], 5) == 5 * 2.0 + 1.0 + 1.5


def test_layers_are_dealt_evenly_and_the_ends_get_no_more() -> None:
    assert layers_by_stage(8, 4) == [2, 2, 2, 2]
    assert layers_by_stage(70, 4) == [17, 18, 18, 17]
    assert layers_by_stage(5, 2) == [3, 2]
    assert layers_by_stage(30, 8) == [3, 4, 4, 4, 4, 4, 4, 3]
    assert all(sum(layers_by_stage(n, p)) == n for n, p in product(range(4, 40), (1, 2, 4)))


@pytest.mark.parametrize("part", ["model", "blocks"])
@pytest.mark.parametrize("model", [SMALL, FOUR])
def test_one_stage_and_one_replica_are_the_plain_planner(model: ModelConfig, part: Part) -> None:
    pipeline = splits(model, part=part).pipeline(Split(1, 1, 4), 4)
    result = search(Planner.of(model, TWO_LEVELS, 4, 4, None, "paper", part=part))
    assert pipeline.microbatches == 1
    assert pipeline.seconds == pytest.approx(result.seconds)
    assert pipeline.memory == pytest.approx(result.memory)
    chosen = {known.name: known.candidate.text for known in pipeline.stages[0].chosen}
    assert chosen == result.sequences
    posted = replace(splits(model, part=part), posted=True)
    priced = posted.pipeline(Split(1, 1, 4), 4, lambda _: result.sequences).seconds
    planner = Planner.of(model, TWO_LEVELS, 4, 4, None, "paper", part=part, posted=True)
    assert priced == pytest.approx(Given.with_sequences(planner, result.sequences).result.seconds)


def test_stages_have_all_operators_of_the_model_once() -> None:
    pipeline = splits().pipeline(Split(4, 1, 1), 1)
    kinds = [
        operator.kind
        for stage in pipeline.stages
        for operator in stage.operators
        if operator.name != "stream"
    ]
    assert kinds == [operator.kind for operator in operators(FOUR)]
    assert pipeline.stages[1].operators[0].name == "stream"


def test_a_ranking_keeps_the_tables_of_no_search() -> None:
    gc.collect()
    before = planners()
    ranked = best_of_each(splits(devices=4, batch=4))
    gc.collect()
    assert len(ranked) > 5
    some = {number: known for number, known in planners().items() if number not in before}
    assert not [known for known in some.values() if known.known or known._edges]


def worth(row: PlanRow) -> tuple[bool, float]:
    """Plans that fit first, of these the fastest, of others the smallest."""
    fits = row.memory <= row.cluster.memory
    return not fits, row.seconds if fits else row.memory


def best_of_each(asked: Splits) -> list[PlanRow]:
    """The best of every split, those that fit first, the fastest first."""
    best: dict[Split, PlanRow] = {}
    for row in sorted(asked.tried(), key=worth):
        best.setdefault(row.split, row)
    return sorted(best.values(), key=lambda row: (row.memory > row.cluster.memory, row.seconds))


def planners() -> dict[int, Planner]:
    """All planners that are there."""
    return {id(known): known for known in gc.get_objects() if isinstance(known, Planner)}


@pytest.mark.parametrize(("first", "last"), [(True, False), (False, False), (False, True)])
def test_many_layers_of_a_chunk_are_planned_as_a_search_of_all_plans_them(
    first: bool, last: bool
) -> None:
    planned = splits(replace(FOUR, layers=14), 4, 4)
    group, place, aim = planned.group(Split(2, 1, 2), 1), StagePart(7, first, last), ChunkAim(0.2)
    every = search(group.planner(place, aim))
    stage = group.searched(place, aim)
    assert {chosen.name: chosen.candidate.text for chosen in stage.chosen} == every.sequences
    assert sum(StageCost(stage).seconds(PLAIN)) == pytest.approx(every.seconds)
    assert StageCost(stage).bytes(PLAIN) == pytest.approx(every.stage.bytes(PLAIN))


def test_stages_of_unequal_chunks_are_interleaved() -> None:
    """5 layers on 2 stages: 2 chunks of each. The first and the last chunk have one layer."""
    planned = splits(replace(FOUR, layers=5), 2, 4)
    assert OptionChoices(interleaves=True).most_chunks(5, 2, 4) == 2
    options = TrainingOptions(schedule="interleaved-1f1b", chunks=2)
    pipeline = planned.pipeline(Split(2, 1, 1), 1, options=options)
    assert [len({layer_of(name.name) for name in stage.chosen} - {None})
            for stage in pipeline.stages] == [1, 1, 2, 1]  # fmt: skip
    plan = pipeline.plan
    assert plan.pipeline is not None
    assert plan.pipeline.chunks == 2
    assert lower_step(plan, 4, 8).ranks == 2


def test_memory_is_that_of_the_stage_with_the_most() -> None:
    """Blocks alone: the first stage keeps the stash of as many microbatches as there are stages."""
    pipeline = splits(part="blocks").pipeline(Split(4, 1, 1), 1)
    first = pipeline.chunks[0]
    assert {chunk.bytes(PLAIN) for chunk in pipeline.chunks} == {first.bytes(PLAIN)}
    parameters = sum(
        size for name, shape in FOUR.parameter_shapes.items() if name.startswith("blocks.0.")
        for size in [shape[0] * (shape[1] if len(shape) > 1 else 1)]
    )  # fmt: skip
    assert first.parameters == pytest.approx(parameters)
    sizes = first.bytes(PLAIN)
    assert sizes.stash > 0
    assert pipeline.memory == pytest.approx(16 * parameters + 4 * sizes.stash + sizes.running)


@pytest.mark.parametrize("split", [Split(1, 2, 4), Split(1, 4, 2), Split(1, 8, 1)])
@pytest.mark.parametrize("model", [SMALL, FOUR])
def test_replicas_are_the_outermost_cut_of_the_rows(model: ModelConfig, split: Split) -> None:
    pipeline = splits(model, 8, 8).pipeline(split, 8 // split.replicas)
    planner = Planner.of(model, TWO_LEVELS, 8, 8, None, "paper")
    whole = Given.with_sequences(planner, pipeline.plan.sequences).result
    assert pipeline.seconds == pytest.approx(whole.seconds)
    assert pipeline.memory == pytest.approx(whole.memory)


def test_gradients_are_summed_once_in_a_step() -> None:
    """Of four micro-batches all parts but the sums of gradients take four times as long."""
    planned = splits(devices=8, batch=8, part="blocks")
    once, often = (planned.pipeline(Split(1, 2, 4), size).chunks[0].seconds(PLAIN)
                   for size in (4, 1))  # fmt: skip
    assert once.reduction > 0
    assert planned.pipeline(Split(1, 2, 4), 4).seconds == pytest.approx(sum(once))
    four = 4 * (often.compute + often.communication) + often.reduction
    assert planned.pipeline(Split(1, 2, 4), 1).seconds == pytest.approx(four)


def test_the_way_to_the_next_stage() -> None:
    """Stages of one device: a block of 8 rows by 64 columns goes there and its gradient back."""
    of_blocks = splits(replace(FOUR, context=8), part="blocks")
    four = of_blocks.pipeline(Split(4, 1, 1), 1)
    size = 8 * 64 * 4
    way = 2 * (1e-6 + size / 1e9)
    stage_seconds = sum(four.chunks[0].seconds(PLAIN))
    assert four.seconds == pytest.approx(4 * stage_seconds + 3 * way + 3 * (stage_seconds + way))


def test_a_stage_has_no_more_devices_than_are_searched_one_by_one() -> None:
    large = changed(TWO_LEVELS, nodes=16, links=(
        TWO_LEVELS.links[0], changed(TWO_LEVELS.links[1], joins=64)
    ))  # fmt: skip
    tried = list(all_splits(FOUR, large, 64, splits().batch, 64))
    assert max(split.parts for split in tried) == 32
    assert {split for split in tried if split.parts == 32} == {(1, 2, 32), (2, 1, 32)}
    within = [*all_splits(FOUR, large, 64, splits().batch)]
    assert max(split.parts for split in within) == large.devices_per_node == 4
    assert within == [split for split in tried if split.parts <= 4]


@cache
def of_eight_devices() -> tuple[Splits, list[list[PlanRow]]]:
    """Splits of eight devices, and for each all sizes of a micro-batch; no memory changes them."""
    planned, every = splits(devices=8, batch=4), []
    for p, d, m in product((1, 2, 4, 8), repeat=3):
        if p * d * m != planned.devices or p > planned.model.layers or planned.batch % d:
            continue
        if m > planned.cluster.devices_per_node:
            continue
        sizes = [size for size in range(1, planned.batch + 1) if planned.batch // d % size == 0]
        every.append([planned.pipeline(Split(p, d, m), size) for size in sizes])
    return planned, every


@pytest.mark.parametrize("memory", [1e9, 1.2e6])
def test_the_ranking_is_that_of_trying_all(memory: float) -> None:
    planned, every = of_eight_devices()
    ranked = best_of_each(replace(planned, cluster=changed(TWO_LEVELS, memory=memory)))
    tried = []
    for of_split in every:
        fitting = [pipeline for pipeline in of_split if pipeline.memory <= memory]
        tried.append(min(fitting or of_split, key=lambda pipeline: pipeline.seconds))
    assert {pipeline.split for pipeline in ranked} == {pipeline.split for pipeline in tried}
    fits = [pipeline.memory <= memory for pipeline in ranked]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)
    best = min(
        (pipeline for pipeline in tried if pipeline.memory <= memory),
        key=lambda pipeline: pipeline.seconds,
    )
    assert ranked[0].seconds <= best.seconds
    if memory == 1e9:
        assert (ranked[0].split, ranked[0].size) == (best.split, best.size)


def test_parameters_are_updated_once_in_a_step() -> None:
    slow = changed(TWO_LEVELS, operators={"update": Passing(0.25, 1e10)})
    one, other = (splits(part="blocks", cluster=case, posted=True).pipeline(Split(2, 1, 2), 1)
                  for case in (TWO_LEVELS, slow))  # fmt: skip
    fast, took = (max(stage.update for stage in known.stage_seconds) for known in (one, other))
    parameters = max(chunk.parameters for chunk in other.chunks)
    assert took > 0.25 + 4 * parameters / 1e10  # each of several parameters takes 0.25 s to start
    assert other.seconds - one.seconds == pytest.approx(took - fast)


ONE = replace(SMALL, layers=1)
SHARDS = get_args(Shard)
RECOMPUTES: tuple[Recompute, ...] = (
    "none", "selective", "full", ("norm1", "attention"), ("qkv", "attention", "fc1"),
)  # fmt: skip


def splits_of(
    model: ModelConfig = FOUR, devices: int = 8, batch: int = 4, memory: float = 1e9,
    choices: OptionChoices = EVERY_CHOICE,
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
    """On one stage the search's cost, times the micro-batches, is the step of `PlanRow`."""
    draw = random.Random(seed)
    replicas, batches = draw.choice([1, 2, 3]), draw.choice([1, 2, 4])
    options = TrainingOptions(shard=draw.choice(SHARDS), recompute=draw.choice(RECOMPUTES))
    model = draw.choice([ONE, replace(ONE, tied=False)])
    planned = splits_of(model, 2 * replicas, 2 * replicas * batches)
    split = Split(1, replicas, 2)
    group = planned.group(split, 2)
    aim = ChunkAim(1 / batches, options.shard, options.recompute)
    planner = group.planner(StagePart(1, True, True), aim)
    among = few_options(planner, draw)

    def seconds(choices: dict[str, int]) -> float:
        stage = Stage.of(planner, choices)
        chunks = (StageCost(stage),)
        return PlanRow(model, planned.cluster, split, 2, batches, options, chunks).seconds

    cost, numbers_of = Exact(planner, among).best
    lists = [among[planner.key(operator.name)].tolist() for operator in planner.operators]
    names = [operator.name for operator in planner.operators]
    least = min(seconds(dict(zip(names, numbers, strict=True))) for numbers in product(*lists))
    chosen = dict(zip(names, numbers_of, strict=True))
    assert seconds(chosen) == pytest.approx(least, rel=1e-12)
    assert cost * batches == pytest.approx(least, rel=1e-12)


@cache
def tried(split: Split) -> tuple[Splits, list[PlanRow]]:
    """All micro-batches and options of a split that training has; no memory changes them."""
    planned, every, shards = splits_of(), list[PlanRow](), get_args(Shard)[:2]
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
    return planned, every


@pytest.mark.parametrize("memory", [1e9, 1.1e6, 7e5, 5e5])
@pytest.mark.parametrize("split", [Split(2, 2, 2), Split(1, 4, 2)])
def test_the_best_options_are_those_of_trying_all(split: Split, memory: float) -> None:
    planned, every = tried(split)
    bounded = replace(planned, cluster=changed(TWO_LEVELS, memory=memory))
    best = min(bounded.of_split(split), key=worth)
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
    planned = splits_of(ONE, 4, 4)
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
    fastest = min(splits_of(choices=OptionChoices()).of_split(split), key=worth)
    small = splits_of(choices=OptionChoices(), memory=1.05e6)
    tried = [small.pipeline(split, size) for size in (1, 2)]
    assert all(pipeline.memory > small.cluster.memory for pipeline in tried)
    best = min(small.of_split(split), key=worth)
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
    planned = splits_of(model, devices, 4 * split.replicas)
    several = split.stages > 1
    options = TrainingOptions(
        shard="optimizer", recompute="full", chunks=1 + several,
        schedule="interleaved-1f1b" if several else "1f1b",
    )  # fmt: skip
    pipeline = planned.pipeline(split, 2, options=options)
    plan = pipeline.plan
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
            "by at most 4 devices, a power of two, got 7: take 4, or another --batch",
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
