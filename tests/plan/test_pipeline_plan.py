"""Plans with a pipeline as files, presets and targets; and what is refused, in whole messages.

Prices of shards, recomputation and buckets against what programs of steps hold and send.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from command import run
from lowered_steps import lower_step
from msgspec.structs import replace as changed
from partitioned_cases import SHAPES
from pipelined_plans import POSITIONS
from planner_cases import TWO_LEVELS, UNTIED, cluster
from profiles import IS_LONG

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import layer_operators
from primepar.passes.block_uses import Rank
from primepar.passes.liveness import sizes_of
from primepar.plan import Plan, load_plan, preset_plan, save_plan
from primepar.plan.cluster import Link, load_cluster
from primepar.plan.pipeline_layout import PipelineLayout
from primepar.plan.search.row import Split
from primepar.plan.search.splits import Splits
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
from primepar.schedule.ledger import sends
from primepar.schedule.program import Collective, Compute

MODEL = ModelConfig.of("gpt2", layers=4, hidden=32, heads=4, context=16, vocabulary=50)
CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16,
          "vocab_size": 50}  # fmt: skip
FILE = {"schedule": "1f1b", "stages": 2, "micro_batches": 4}


def test_a_plan_with_a_pipeline_survives_its_file(tmp_path: Path) -> None:
    plan, file = preset_plan("1f1b:2x4,M2,megatron", MODEL, 8, 8), tmp_path / "plan.json"
    save_plan(plan, file)
    assert load_plan(file) == plan
    assert json.loads(file.read_text())["pipeline"] == FILE
    assert (plan.stage_ranks, plan.mesh.ranks, plan.micro_batches) == (4, 8, 4)


def test_a_plan_without_one_has_no_such_key(tmp_path: Path) -> None:
    save_plan(preset_plan("megatron", MODEL, 4), tmp_path / "plan.json")
    assert "pipeline" not in json.loads((tmp_path / "plan.json").read_text())


@pytest.mark.parametrize(
    ("schedule", "stages", "ends"),
    [
        ("1f1b", 2, [(0, "embedding", "blocks.1.add2"), (1, "blocks.2.norm1", "loss")]),
        ("interleaved-1f1b", 2, [(0, "embedding", "blocks.0.add2"),
                                 (1, "blocks.1.norm1", "blocks.1.add2"),
                                 (0, "blocks.2.norm1", "blocks.2.add2"),
                                 (1, "blocks.3.norm1", "loss")]),
        ("zbv", 2, [(0, "embedding", "blocks.0.add2"), (1, "blocks.1.norm1", "blocks.1.add2"),
                    (1, "blocks.2.norm1", "blocks.2.add2"), (0, "blocks.3.norm1", "loss")]),
    ],
)  # fmt: skip
def test_the_chunks_of_the_stages(
    schedule: str, stages: int, ends: list[tuple[int, str, str]]
) -> None:
    plan = preset_plan(f"{schedule}:{stages}x4,data", MODEL, stages)
    assert plan.pipeline is not None
    chunks = plan.pipeline.chunk_operators(plan.operators, MODEL.layers)
    places = zip(plan.pipeline.stage_chunks, chunks, strict=True)
    assert [(stage, names[0].name, names[-1].name) for (stage, _), names in places] == ends
    assert [name for names in chunks for name in names] == list(plan.operators)


@pytest.mark.parametrize(
    ("schedule", "splits"),
    [("gpipe", False), ("1f1b", False), ("interleaved-1f1b", False), ("zb-h1", True),
     ("zbv", True)],
)  # fmt: skip
def test_the_schedules_that_split_backward(schedule: str, splits: bool) -> None:
    plan = preset_plan(f"{schedule}:2x4,data", MODEL, 2)
    assert plan.pipeline is not None
    assert plan.pipeline.splits_backward == splits


@pytest.mark.parametrize(
    ("name", "ranks", "batch", "message"),
    [
        ("1f1b:2x3,data", 2, 4, "1f1b:2x3,data on 2 devices: $.batch: expected a multiple of the "
         "3 micro-batches, got 4: take 6"),
        ("1f1b:8x2,data", 8, None, "1f1b:8x2,data on 8 devices: $.pipeline: expected at least 8 "
         "layers for 8 stages, got a model of 4 layers: take fewer stages"),
        ("zbv:4x2,data", 4, None, "zbv:4x2,data on 4 devices: $.pipeline: expected at least 8 "
         "layers for 4 stages of 2 chunks, got a model of 4 layers: take fewer stages"),
        ("gpipe:3x2,data", 4, None, "gpipe:3x2,data on 4 devices: expected a multiple of the 3 "
         "stages as number of devices, got 4: take 6 devices, or other stages"),
        ("1f1b:2x2x2,data", 2, None,
         "1f1b:2x2x2,data: 1f1b: expected 1 chunks, got 2: write chunks=1"),
        ("interleaved-1f1b:2x3,data", 2, None, "interleaved-1f1b:2x3,data: interleaved-1f1b: "
         "expected micro_batches that are a multiple of stages=2, got 3: write micro_batches=4"),
        ("1f1b,data", 2, None, "1f1b,data: expected stages and micro-batches of the pipeline, got "
         "none: write 1f1b:2x4,data for 2 stages and 4 micro-batches"),
        ("1f1b:0x4,data", 2, None, "1f1b:0x4,data: expected stages and micro-batches of the "
         "pipeline, got 0x4: write 1f1b:2x4,data for 2 stages and 4 micro-batches"),
        ("1fb1:2x4,data", 2, None, "1fb1:2x4,data: expected a schedule out of gpipe, 1f1b, "
         "interleaved-1f1b, zb-h1, zbv before :, got '1fb1': write 1f1b"),
        ("1f1b:2x4", 2, None, "1f1b:2x4: expected a preset for the stages of the pipeline, got "
         "none: write 1f1b:2x4,megatron for 2 stages and 4 micro-batches"),
        ("1f1b:2x4,summa", 4, None, "a stage of 1f1b:2x4,summa: summa: expected q x q devices, "
         "got 2: take 4 or 9"),
        ("1f1b:2x90000,data", 2, None, "1f1b:2x90000,data: expected at most 100,000 passes of a "
         "micro-batch through a stage, got 180,000: take fewer micro-batches"),
        ("1f1b:2x4,M2,data", 8, 24, "1f1b:2x4,M2,data on 8 devices: $.batch: micro-batch of 6: "
         "expected a multiple or a divisor of the 4 slices of the rows in blocks.0.attention, got "
         "6: take 32"),
    ],
)  # fmt: skip
def test_a_pipeline_that_does_not_fit_is_refused(
    name: str, ranks: int, batch: int | None, message: str
) -> None:
    with pytest.raises(PlanError) as error:
        preset_plan(name, MODEL, ranks, batch)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"1f1b"', '"1f2b"', "Invalid enum value '1f2b' - at `$.pipeline.schedule`: write one of "
         "gpipe, 1f1b, interleaved-1f1b, zb-h1, zbv"),
        ('"stages": 2', '"stages": 3', "$.pipeline: expected a multiple of the 3 stages as number "
         "of devices, got 4: take 6 devices, or other stages"),
        ('"stages": 2', '"stages": 0', "Expected `int` >= 1 - at `$.pipeline.stages`"),
        ('"micro_batches"', '"microbatches"',
         "Object contains unknown field `microbatches` - at `$.pipeline`"),
        ('"stages": 2', '"stages": 2, "chunks": 3',
         "1f1b: expected 1 chunks, got 3: write chunks=1"),
        ('"ranks": 4', '"ranks": 8', '$.sequences["embedding"]: expected a sequence for the 4 '
         "devices of a stage, 8 in 2 stages, got 2 in 'N2': their lengths multiply to the number "
         "of devices"),
        ('"ranks": 4', '"ranks": 2', '$.sequences["embedding"]: expected a sequence for the 1 '
         "device of a stage, 2 in 2 stages, got 2 in 'N2': their lengths multiply to the number of "
         "devices"),
        ('"batch": 8', '"batch": 6',
         "$.batch: expected a multiple of the 4 micro-batches, got 6: take 8"),
    ],
)  # fmt: skip
def test_a_file_with_a_wrong_pipeline_is_refused(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    save_plan(preset_plan("1f1b:2x4,megatron", MODEL, 4, 8), file)
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(PlanError) as error:
        load_plan(file)
    assert str(error.value) == f"{file}: {message}"


# On the command line


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    """A plan that `primepar show` wrote for a preset in a pipeline."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    file = str(tmp_path / "plan.json")
    done = run("show", "1f1b:2x2,megatron", "--model", str(tmp_path / "config.json"),
               "--devices", "4", "--batch", "4", "-o", file)  # fmt: skip
    assert (done.code, done.out) == (0, f"wrote {file}\n")
    return file


def test_a_plan_with_a_pipeline_is_shown(plan_file: str) -> None:
    lines = run("show", plan_file).out.splitlines()
    assert lines[0] == "gpt2, 2 layers of hidden 32, on 4 devices"
    first = next(number for number, line in enumerate(lines) if line.startswith("pipeline"))
    assert lines[first : first + 6] == [
        "pipeline: 1f1b, 2 stages of 2 devices, 2 micro-batches of 2 sequences; layouts are those "
        "of stage 0,",
        "  and device i of stage s is device 2 s + i",
        "stage 0: embedding to blocks.0.add2",
        "stage 1: blocks.1.norm1 to loss",
        "between stages: 8,192 elements that all devices send, with the gradients, and without the "
        "table that",
        "  the head shares",
    ]


def test_a_plan_with_a_pipeline_is_proved_checked_and_priced(plan_file: str) -> None:
    proved = run("verify", plan_file)
    assert proved.code == 0
    assert proved.out.startswith(f"{plan_file}: proved for a step of 4 sequences of 16 tokens")
    assert run("check", plan_file).out.splitlines()[-1] == (
        "  by kernels on real numbers: loss and gradients within 1e-10 of the dense ones"
    )
    priced = run("simulate", plan_file, "--cluster", "h200-8")
    assert (priced.code, priced.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "--batch", "3"), "batch: expected 4, as the plan states, got 3: take that, or "
         "a plan for this one"),
        (("train", "--ranks", "2"), "plan: expected 4 devices, as it was made for, got 2: start 4 "
         "processes, or make a plan for 2"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_the_plan_end_in_one_line(
    plan_file: str, arguments: tuple[str, ...], message: str
) -> None:
    command, *options = arguments
    target = ["--plan", plan_file] if command == "train" else [plan_file]
    done = run(command, *target, *options)
    assert (done.code, done.out, done.err) == (2, "", f"primepar: error: {message}\n")


def test_training_takes_a_file_and_not_a_preset() -> None:
    done = run("train", "--plan", "1f1b:2x4,megatron", "--ranks", "4")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "primepar: error: --plan 1f1b:2x4,megatron: expected a plan file or a sequence like "
        "K,P2x2, got the name of a preset: write its plan with primepar show 1f1b:2x4,megatron "
        "--model config.json --devices 4 -o plan.json\n"
    )


def test_the_best_split_is_written_as_a_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"n_embd": 64}))
    file = tmp_path / "best.json"
    done = run("plan", str(tmp_path / "config.json"), "--cluster", "v100-8x4", "--devices",
               "4", "--batch", "8", "--objective", "splits", "-o", str(file))  # fmt: skip
    assert done.code == 0
    best = done.out.splitlines()[1].split()
    assert done.out.splitlines()[-1] == f"wrote {file}"
    plan = load_plan(file)
    stages, replicas, parts, micro_batches = map(int, best[:4])
    assert (plan.ranks, plan.batch) == (4, 8)
    assert (plan.pipeline is None) == (stages * micro_batches == 1)
    if plan.pipeline is not None:
        assert plan.pipeline == PipelineLayout(
            schedule="1f1b", stages=stages, micro_batches=micro_batches
        )
    assert plan.sequence("head").ranks == replicas * parts
    assert run("verify", str(file)).code == 0


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
        times * (size(block) or 0)
        for node in program.programs[0]
        if isinstance(node, Collective) and ".own[" in str(getattr(node, "block", ""))
        for block, times in sends(node, 0)
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


OPTIONS = (
    TrainingOptions(),
    TrainingOptions(shard="optimizer", recompute="full"),
    TrainingOptions(recompute="selective"),
    TrainingOptions(recompute=("attention", "act")),
)


@pytest.mark.parametrize(
    ("split", "options"),
    list(product((Split(1, 4, 1), Split(2, 1, 2), Split(2, 2, 1)), OPTIONS)) if IS_LONG else
    [(Split(1, 4, 1), OPTIONS[3]), (Split(2, 1, 2), OPTIONS[1]), (Split(2, 1, 2), OPTIONS[2]),
     (Split(2, 2, 1), OPTIONS[0]), (Split(2, 2, 1), OPTIONS[1])],
)  # fmt: skip
def test_the_memory_of_a_pipeline_is_no_less_than_what_its_program_holds(
    split: Split, options: TrainingOptions
) -> None:
    planned = Splits(FOUR, TWO_LEVELS, 4, 8, "float32", "paper")
    pipeline = planned.pipeline(split, 2, options=options)
    held = max(accounting(pipeline.plan, 8, 16, "float32").held)
    assert held <= pipeline.memory < 1.5 * held
