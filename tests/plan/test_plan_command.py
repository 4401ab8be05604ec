"""`primepar plan`: what it prints and writes for a model and for a plan, and what it refuses."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from command import EXAMPLE, example, run
from planner_cases import simulated_once
from profiles import IS_LONG

import primepar
from primepar.commands.plan_objective import Question
from primepar.commands.plan_several import Point, answers, frontier
from primepar.models.config_json import load_config
from primepar.partition import PrimePar
from primepar.plan import Plan, load_plan, preset_plan, save_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.search import explain, ranked, row
from primepar.plan.search.explain import words
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import Given
from primepar.plan.search.splits import Splits
from primepar.plan.simulator.step import simulate_step

ONE, MODEL, DEEP = example(1), example(2), str(EXAMPLE)
"""The example with one layer, with two, and with its four."""
V100 = ("--cluster", "v100-8x4")
PLAN, ON_FOUR = ("plan", MODEL, *V100), ("--devices", "4")
WHERE = load_cluster("v100-8x4")
SECONDS, KEPT = (
    ("compute", "communication", "reduction", "update"),
    ("parameters", "gradients", "states", "stash"),
)
"""Terms of a cost whose sums are the seconds, and the bytes that are kept."""
STAGED = [
    ("interleaved-1f1b:2x4,data", 4), ("data", 3), ("1f1b:2x4,M2,megatron", 4),
    ("gpipe:2x4,megatron-sp", 4), ("1f1b:1x2,summa", 4), ("zb-h1:4x4,megatron", 4),
    ("1f1b:2x2,primepar", 8), ("zbv:2x4,megatron", 4),
]  # fmt: skip


class Best(NamedTuple):
    """The best plan on four devices: what is printed, and the file that is written."""

    report: Any
    path: str


@pytest.fixture(autouse=True, scope="module")
def steps() -> Iterator[None]:
    with simulated_once():
        yield


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Best:
    path = str(tmp_path_factory.mktemp("best") / "plan.json")
    asked = ("--explain", "--tokens", "1e9", "-o", path, "--json")
    return Best(json.loads(run("plan", ONE, *V100, *ON_FOUR, *asked).out), path)


def test_the_plan_is_written_and_printed(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = run(*PLAN, "--devices", "2", "--batch", "4", "--explain", "--pp", "1", "-o",
               str(path))  # fmt: skip
    assert done.code == 0
    plan = load_plan(path)
    assert (plan.ranks, plan.batch) == (2, 4)
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 110
    neighbour = re.compile(r"    \S+: [+-].* ms, .* MiB(, as \d+ more)?")
    table = [line for line in lines[4 : lines.index("", 4) - 1] if not neighbour.fullmatch(line)]
    assert sum(bool(neighbour.fullmatch(line)) for line in lines) > 20
    sequences = {line.split()[0]: line.split()[2] for line in table if len(line.split()) >= 8}
    assert sequences["blocks.0-1.qkv"] == plan.sequences["blocks.1.qkv"]
    assert sequences["head"] == plan.sequences["head"]
    assert done.out.endswith(f"wrote {path}\n")


def test_json_has_the_times_whose_sum_is_that_of_the_step(best: Best) -> None:
    report = best.report
    choices, terms = report["choices"], report["terms"]
    total = sum((choice["seconds"] + choice["moving"]) * choice["layers"] for choice in choices)
    assert report["priced"] + report["hidden_sums"] == pytest.approx(total)
    assert report["simulated"] is True
    assert report["seconds"] == pytest.approx(report["priced"], rel=0.25)
    for choice in choices:
        seconds, kept = choice["seconds"], choice["kept"]
        assert seconds == pytest.approx(sum(choice["terms"][term] for term in SECONDS))
        assert kept == pytest.approx(sum(choice["terms"][term] for term in KEPT))
        prices = [(round(neighbour["more_seconds"], 9), round(neighbour["more_bytes"]))
                  for neighbour in choice["neighbours"]]  # fmt: skip
        assert len(set(prices)) == len(prices) == 3
        assert (0.0, 0) not in prices
    assert total == pytest.approx(sum(terms[term] for term in SECONDS) + report["moving"])
    assert report["memory"] == pytest.approx(sum(terms[term] for term in (*KEPT, "running")))
    assert report["tokens_per_second"] == pytest.approx(8 * 32 / report["seconds"])
    products, attention = 12 * 64 * 64 + 64 * 257, 2 * 64 * 32
    flops = 6 * (products + attention) * report["tokens_per_second"]
    assert report["mfu"] == pytest.approx(flops / (4 * 15.7e12))
    assert sum(report["axes"].values()) == pytest.approx(report["priced"])
    assert report["days"] == pytest.approx(1e9 / report["tokens_per_second"] / 86400)
    assert report["only_priced"] is None
    assert (report["limit"], report["fits"]) == (32 * 2**30, True)


def test_a_preset_is_priced_next_to_the_best_plan_and_megatrons_fastest(best: Best) -> None:
    price = primepar.price("megatron", "v100-8x4", model=ONE, devices=4)
    model, report = load_config(Path(ONE)), best.report
    assert price.best is not None
    assert price.best.seconds == report["seconds"]
    assert price.best.memory == report["memory"]
    more = sum(float(choice.more or 0) for choice in price.choices)
    work = price.priced + price.hidden_sums
    assert more == pytest.approx(work - report["priced"] - report["hidden_sums"])
    assert sum(choice.layers * (choice.seconds + choice.moving)
               for choice in price.choices) == pytest.approx(work)  # fmt: skip
    seconds = {
        preset: simulate_step(preset_plan(preset, model, 4, 8), 8, 32, WHERE, "float32").seconds
        for preset in ("megatron", "M2,megatron", "data", "megatron-sp")
    }
    megatron = price.baseline
    assert megatron is not None
    assert megatron.seconds == pytest.approx(seconds[megatron.name])
    assert report["baseline"]["seconds"] == megatron.seconds
    assert all(report["seconds"] <= 1.0001 * other for other in seconds.values())
    lines = words(price).splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("Megatron's fastest"))
    terms = lines[place + 1].removeprefix("  this plan takes more than that, ms: ").split(", ")
    axes = {axis: price.axes[axis] - megatron.axes[axis] for axis in price.axes}
    largest = sorted(axes, key=lambda axis: -abs(axes[axis]))[: len(terms)]
    assert terms == [f"{axis} {1e3 * axes[axis]:+,.1f}" for axis in largest]


def test_the_best_plan_takes_nothing_more_than_the_best(best: Best) -> None:
    price, report = json.loads(run("plan", best.path, *V100, "--json").out), dict(best.report)
    assert [choice.pop("more") for choice in price["choices"]] == [0.0] * len(price["choices"])
    assert price.pop("best")["seconds"] == report["seconds"]
    assert report.pop("best") is None
    assert [choice["more"] for choice in report["choices"]] == [None] * len(price["choices"])
    only_there: dict[str, object] = {"more": None, "neighbours": []}
    choices = [{**choice, **only_there} for choice in report["choices"]]
    price["choices"] = [{**choice, **only_there} for choice in price["choices"]]
    asked, *rows = price.pop("rows")
    assert (rows, asked["seconds"]) == (report.pop("rows"), report["seconds"])
    assert price == {**report, "choices": choices, "days": None, "gap": price["gap"]}


def test_the_best_is_within_the_memory_of_a_device_where_some_plan_is(best: Best) -> None:
    """Also where the search adds up more than a device holds at once."""
    model, held = load_config(Path(ONE)), max(best.report["held"])
    assert held < best.report["memory"]
    for memory, fits in (((held + best.report["memory"]) / 2, True), (1000, False)):
        small = msgspec.structs.replace(WHERE, memory=memory)
        first, *_ = ranked.ranked(Splits(model, small, 4, 8, "float32", "paper", posted=True))
        assert first.fits is fits
        assert (max(first.held) <= memory) is fits
        assert first.seconds <= 1.1 * best.report["seconds"] or not fits


def test_a_primitive_of_a_file_costs_what_its_map_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PrimePar's map under another name: nothing in a price depends on the name."""
    monkeypatch.chdir(tmp_path)
    source = Path(str(inspect.getsourcefile(PrimePar))).read_text()
    Path("mine.py").write_text(source.replace("class PrimePar", "class Mine"))
    known = preset_plan("primepar", load_config(Path(MODEL)), 4)
    renamed = dict.fromkeys(known.sequences, "mine.py:Mine2x2")
    save_plan(msgspec.structs.replace(known, sequences=renamed), tmp_path / "plan.json")
    planner = Planner.of(known.model, WHERE, 4, 8, "float32", "paper", posted=True)
    mine, given = (
        Given.with_sequences(planner, plan.sequences).result
        for plan in (load_plan(tmp_path / "plan.json"), known)
    )
    assert set(mine.sequences.values()) == {"mine.py:Mine2x2"}
    assert (mine.seconds, mine.memory) == (given.seconds, given.memory)
    assert mine.held == given.held


def test_linear_operators_have_what_they_send_over_the_lower_bound_as_check_has() -> None:
    """Where no operand starts replicated; a vocabulary of 257 is no multiple of the slices."""
    model = load_config(Path(MODEL))
    planner = Planner.of(model, WHERE, 4, 8, "float32", "paper", posted=True)
    mixed = dict(preset_plan("primepar", model, 4, 8).sequences)
    for preset, name in (("M2,megatron", "fc1"), ("megatron-sp", "fc2")):
        other = preset_plan(preset, model, 4, 8).sequences
        mixed |= {key: text for key, text in other.items() if key.endswith(name)}
    explained = explain.explain([Given.with_sequences(planner, mixed).result])
    table = words(explained).splitlines()[3:]
    end = table[0].index("/bound") + len("/bound")
    cells = {}
    for choice, line in zip(explained.choices, table[1:], strict=False):
        name = choice.operator.rpartition(".")[2]
        cells[name] = line[end - 6 : end].strip()
        if choice.over_bound is not None and name != "head":
            known = planner.named[choice.operator.replace("0-1", "0")]
            ran = primepar.check(choice.sequence, shape=(8 * 32, known.N, known.K))
            assert choice.over_bound == pytest.approx(ran.ratio)
    linear = ("qkv", "proj", "fc1", "fc2", "head")
    assert [cells[name] for name in linear] == ["3.22", "3.51", "-", "1.50", "3.50"]
    assert {cell for name, cell in cells.items() if name not in linear} == {""}


def test_layers_that_differ_are_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "MOST_SIMULATED", 0)
    plan = preset_plan("data", load_config(EXAMPLE), 2, 8)
    other = preset_plan("megatron", plan.model, 2).sequences
    sequences = {
        name: other[name] if name.startswith("blocks.1.") else text
        for name, text in plan.sequences.items()
    }
    price = primepar.price(Plan(model=plan.model, ranks=2, sequences=sequences), "v100-8x4")
    layers = {choice.operator: choice.layers for choice in price.choices}
    assert [layers[f"blocks.{which}.qkv"] for which in ("0", "1", "2-3")] == [1, 1, 2]
    moving = {choice.operator: choice.moving for choice in price.choices}
    assert moving["blocks.0.norm1"] == 0 < moving["blocks.1.norm1"]


@pytest.mark.parametrize(("preset", "devices"), STAGED if IS_LONG else STAGED[:2])
def test_plans_with_stages_and_on_any_number_of_devices_have_a_price(
    preset: str, devices: int
) -> None:
    batch = 24 if devices == 3 else 8
    price = primepar.price(preset, "v100-8x4", model=DEEP, devices=devices, batch=batch)
    total = sum(choice.layers * (choice.seconds + choice.moving) for choice in price.choices)
    assert total + price.waiting - price.hidden_sums == pytest.approx(price.priced)
    assert price.seconds * price.tokens_per_second == pytest.approx(batch * 32)
    assert price.counted
    assert 0 < max(price.held) <= price.memory
    assert price.best is not None
    assert price.best.seconds <= price.seconds * (1 + 1e-9)


def test_a_plan_of_stages_prints_what_its_devices_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that they hold at most what is added up, where its step is too long to be counted."""
    monkeypatch.setattr(row, "MOST_PASSES_COUNTED", 1)
    price = primepar.price("1f1b:2x4,M2,megatron", "v100-8x4", model=MODEL, devices=4)
    assert (price.counted, tuple(price.sent)) == (False, ())
    assert set(price.held) == {ceil(price.memory)}
    lines = words(price).splitlines()
    assert lines[1] == "1f1b of 2 x 4 stages x micro-batches: times are means over stages"
    assert max(map(len, lines)) <= 103
    assert sum(line.startswith("a device waits ") for line in lines) == 1
    assert sum(line.startswith("blocks.1.input ") for line in lines) == 1
    assert sum(line.startswith("a device holds at most ") for line in lines) == 1


def test_splits_are_listed_from_the_best_on_and_axes_name_one(tmp_path: Path) -> None:
    path = str(tmp_path / "split.json")
    asked = (*PLAN, *ON_FOUR, "--recompute", "full", "--shard", "optimizer")
    rows = json.loads(run(*asked, "--objective", "splits", "--json").out)
    assert {(row["stages"], row["replicas"], row["parts"]) for row in rows} == {
        (1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1)
    }  # fmt: skip
    assert all(row["microbatches"] * row["microbatch"] * row["replicas"] == 8 for row in rows)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    two = [row for row in rows if row["stages"] == 2]
    report = json.loads(run(*asked, "--pp", "2", "-o", path, "--json").out)
    price = primepar.price(path, "v100-8x4")
    for of_split in (report["seconds"], price.seconds):
        assert of_split == pytest.approx(two[0]["seconds"])
    for of_split in (report["memory"], price.memory):
        assert of_split == pytest.approx(two[0]["memory"])
    assert price.terms["states"] == pytest.approx(two[0]["states"])
    assert primepar.simulate(path, "v100-8x4").seconds > 0


def test_what_a_certificate_covers_is_in_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages, replicas and options are enumerated, and of many devices nothing is certified."""
    monkeypatch.setattr(ranked, "MOST_SIMULATED", 0)
    plain = ("--shard", "none", "--recompute", "none", "--pp", "1", "--tp", "4")
    exact = run(*PLAN, *ON_FOUR, *plain).out.splitlines()[-1]
    enumerated = "enumerated, not certified: splits with the best sequences of each stage by itself"
    covered = r"at most \d+\.\d\d% above the least of"
    all_plain = "without stages, micro-batches and options"
    assert re.fullmatch(rf"certified: {covered} all {all_plain}", exact)
    lines = run(*PLAN, *ON_FOUR).out.splitlines()
    last = lines[lines.index(enumerated) + 1]
    assert re.fullmatch(rf"certified: [\d.]+ ms {all_plain}, by price {covered} these", last)
    monkeypatch.setattr(ranked, "EXACT", 2)
    of_three = (*PLAN, "--devices", "3", "--batch", "6", "--shard", "none")
    for asked in ((*PLAN, *ON_FOUR), of_three):
        lines = run(*asked).out.splitlines()
        assert enumerated in lines
        assert not [line for line in lines if line.startswith("certified")]


def test_splits_are_a_table() -> None:
    lines = run(*PLAN, "--devices", "2", "--objective", "splits").out.splitlines()
    assert lines[0].split() == [
        "stages", "replicas", "devices", "microbatches", "chunks", "shards", "again", "ms",
        "bubble", "MiB",
    ]  # fmt: skip
    assert {line.split()[0] for line in lines[1:]} == {"1", "2"}
    plain = ("--shard", "none", "--recompute", "none", "--pp", "1", "--tp", "2", "--batch", "1")
    rows = json.loads(run(*PLAN, "--devices", "2", *plain, "--objective", "splits", "--json").out)
    assert {row["name"] for row in rows} == {"1 x 1 x 2", "megatron", "megatron-sp"}
    assert min(row["gap"] for row in rows if row["gap"] is not None) < 0.5


def test_no_axis_that_is_fixed_has_a_faster_answer() -> None:
    """Stages, micro-batches and options are searched unasked, so that no question beats none."""
    asked = Question(target=MODEL, cluster="v100-8x4", devices=4, batch=8)
    first, *others = asked.rows(str)
    assert first.run is not None
    changes: list[dict[str, Any]] = [{"pp": 1}, {"pp": 2, "shard": "none"}, {"dp": 4}]
    for change in changes:
        fixed = replace(asked, **change).rows(str)[0]
        assert fixed.run is not None
        assert first.seconds <= fixed.seconds * (1 + 1e-9), change
    assert first.seconds <= min(known.seconds for known in others if known.run is not None)


@pytest.mark.parametrize(
    ("question", "seconds"),
    [
        # 126 layers do not divide by 16 stages of several chunks: as published, MFU 40 to 43 %.
        (Question(target="llama-3.1-405b", cluster="h100", nodes=128, batch=256, tp=8, pp=16, dp=8,
                  dtype="bfloat16"), 13.4),
        (Question(target="llama-2-70b", cluster="h100", nodes=4, batch=32, tp=4), 3.5),
        (Question(target="llama-3.1-8b", cluster="h100", nodes=1, positions=32768, tp=8), 6.5),
    ],
    ids=["405B as published", "70B in stages", "8B of long sequences"],
)  # fmt: skip
def test_models_that_need_stages_or_micro_batches_have_them_unasked(
    question: Question, seconds: float
) -> None:
    first = question.rows(str)[0]
    assert (first.fits, first.only_priced) == (True, None)
    assert first.microbatches > 1
    assert first.bubble < 0.1
    assert first.seconds < seconds


@pytest.mark.parametrize("last", ["1 x 2 x 1, ", "simulation of a plan"])
def test_ctrl_c_prints_the_best_so_far(last: str) -> None:
    """In the enumeration of splits, and in simulations; of several questions no other is put."""
    seen = list[str]()

    def tick(name: str) -> None:
        seen.append(name)
        if name.startswith(last):
            raise KeyboardInterrupt

    question = Question(target=ONE, cluster="v100-8x4", devices=2, batch=4)
    text = question.answer(tick).text
    assert [number for number, name in enumerate(seen) if name.startswith(last)] == [len(seen) - 2]
    assert text.splitlines()[-1] == "stopped: the best so far"
    assert "certified" not in text
    several = answers(question, (4, 8), (2,), tick)
    assert several.text.splitlines()[-1] == "stopped after 1 of 2"
    question = Question(target=ONE, cluster="v100-8x4", devices=2, batch=4, shard="optimizer")
    with pytest.raises(KeyboardInterrupt):  # nothing yet
        question.answer(lambda name: tick(last))


@pytest.mark.parametrize(
    ("axes", "slices"),
    [
        ("--tp 2", {1, 2}), ("--tp 4 --dp 1", {1}), ("--dp 2 --cp 2 --batch 2", {4}),
        ("--cp 1 --batch 2", {1, 2}), ("--pp 1 --tp 2 --dp 2", {2}), ("--pp 2 --cp 2", {2}),
    ],
)  # fmt: skip
def test_axes_are_those_of_every_linear_operator(
    axes: str, slices: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the plan that is written, whatever the other operators do, and also by price alone."""
    monkeypatch.setattr(ranked, "MOST_SIMULATED", 0)
    path = tmp_path / "plan.json"
    done = run(*PLAN, *ON_FOUR, *axes.split(), "-o", str(path))
    assert done.code == 0, done.err
    plan = load_plan(path)
    linear = [operator.name for operator in plan.operators
              if operator.kind == "linear" and operator.name != "head"]  # fmt: skip
    cuts = {name: prod(int(rows) for rows in re.findall(r"\bM(\d+)", plan.sequences[name]))
            for name in linear}  # fmt: skip
    assert set(cuts.values()) <= slices


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--devices", "33"),
         "--devices: expected 1 to 32, the devices of the cluster 8 x 4 V100, as in the PrimePar "
         "paper, got 33: take 32"),
        (("--devices", "2", "--dtype", "bfloat16"),
         "expected a data type that the cluster 8 x 4 V100, as in the PrimePar paper has rates of "
         "(float32, float16), got bfloat16: take one of these, or add [rates.bfloat16]"),
        (("--devices", "2", "--objective", "memory"),
         "--objective memory: expected the seconds that a step may take, got none: write --within "
         "SECONDS"),
        (("--devices", "2", "--within", "1"),
         "--within: expected none together with --objective time, as time itself is least: leave "
         "it out"),
        (("--devices", "2", "--objective", "memory", "--within", "1", "--memory", "1e9"),
         "--memory: expected none together with --objective memory, as memory itself is least: "
         "leave it out"),
        (("--devices", "2", "--memory", "-1"), "--memory: expected more than 0 bytes, got -1"),
        (("--devices", "2", "--objective", "memory", "--within", "nan"),
         "--within: expected more than 0 seconds, got nan"),
        (("--devices", "2", "--objective", "pareto"),
         "--objective pareto: expected time, memory, redundancy or splits, got pareto, which is no "
         "longer listed: write --memory BYTES for each memory"),
        (("--devices", "4", "--tp", "4", "--dp", "2"),
         "--tp: expected degrees that multiply to the 4 devices, of which --dp divides the batch "
         "of 8, got --tp 4 --dp 2: leave one out"),
        (("--devices", "4", "--pp", "2", "--tp", "8"),
         "--tp: expected degrees that multiply to the 4 devices, of which --dp divides the batch "
         "of 8, got --tp 8 --pp 2: leave one out"),
        (("--devices", "2", "--objective", "redundancy", "--shard", "none"),
         "--shard: expected none together with --objective redundancy, as redundancy itself is "
         "least: leave it out"),
        (("--devices", "2", "--memory", "1e5"),
         "expected a plan within the 100,000 bytes of --memory, got none: parameters with "
         "gradients and optimizer states alone take 1,080,320 bytes of each of 2 devices: take "
         "--devices 32, or more, at least 22 are needed"),
        (("--devices", "4", "--objective", "memory", "--within", "0.0005"),
         "expected a plan with a step within the 0.0005 seconds of --within, got none: the "
         "shortest takes 0.000891916 seconds, 0.00039 too many"),
        (("--devices", "2", "--alpha", "1"),
         "--alpha: expected an option of primepar plan, got no such one: write --memory BYTES, the "
         "bytes of a device"),
        (("--devices", "2", "--schedule", "1f1b"),
         "--schedule: expected an option of primepar plan, got no such one: write nothing instead, "
         "as the faster schedule is chosen"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_line(
    options: tuple[str, ...], error: str
) -> None:
    done = run(*PLAN, *options)
    assert (done.code, done.err) == (2, f"primepar: error: {error}\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("megatron", "megatron: expected the model and the devices of a preset, got no --model: "
         "write --model opt-6.7b"),
        ("megatron --model MODEL", "megatron: expected the model and the devices of a preset, got "
         "no --devices: write --devices 8"),
        ("P2x2", "expected a config.json or the name of a published model, got P2x2: write "
         "gpt2-xl, gpt2 or phi-2"),
        ("mixtral-8x7b --ep 3 --devices 4", "--ep: expected 1, 2, 4, powers of two that divide the "
         "8 experts, for stages of at most 4 devices, got 3: write --ep 4"),
        ("MODEL --ep 2", "--ep: expected none for MODEL, which has no routed experts, got 2: leave "
         "it out"),
        ("mixtral-8x7b --ep 4 --pp 2 --devices 4 --memory 1e12", "expected experts over at most 2 "
         "devices, those of a replica of a stage, got 4: take --ep 2"),
        ("plan.json --memory 1e9", "--memory: expected none together with plan.json, as that is a "
         "plan, which is priced: leave it out"),
        ("megtron --model MODEL --devices 4", "expected a preset plan (megatron, megatron-sp, "
         "summa, tesseract, 3d, primepar, stationary, stationary-both-ways, data), or M<d>, "
         "before one as in M2,megatron,"
         " got 'megtron': write megatron"),
        ("plan.json --model MODEL", "plan.json: expected no --model, as a plan names its own, got "
         "--model MODEL: leave it out"),
        ("plan.json --devices 8", "plan.json: expected no --devices, as a plan names its own, got "
         "--devices 8: leave it out"),
        ("plan.json --batch 16", "batch: expected 8, as the plan states, got 16: take that, or a "
         "plan for this one"),
        ("plan.json --dtype bfloat16", "expected a data type that the cluster 8 x 4 V100, as in "
         "the PrimePar paper has rates of (float32, float16), got bfloat16: take one of these, or "
         "add [rates.bfloat16]"),
        ("megatron --model MODEL --devices 3", "megatron on 3 devices: $.sequences["
         '"blocks.0.attention"]: expected heads=8 to be a multiple of the 3 slices of the columns '
         "in 'K3': take a sequence that cuts them in fewer, or a model with heads=9"),
        ("M8,megatron --model MODEL --devices 8 --batch 3", "batch: expected a multiple or a "
         "divisor of the 8 slices of the rows in blocks.0.attention, got 3: take 4"),
        ("megatron --model MODEL --devices 4 --cluster nope", "nope: expected a cluster file or "
         "one of a100, b200, cpu-gloo-4, gb200, h100, h200, mi300x, torus-4x4, tpu-v5p, v100, "
         "v100-8x4, got no such file or directory"),
    ],
)  # fmt: skip
def test_what_has_no_price_is_refused_in_one_line(
    arguments: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_plan(preset_plan("megatron", load_config(Path(MODEL)), 4, 8), tmp_path / "plan.json")
    done = run("plan", *V100, *arguments.replace("MODEL", MODEL).split())
    assert (done.code, done.out) == (2, "")
    assert done.err == f"primepar: error: {error.replace('MODEL', MODEL)}\n"


def test_a_model_that_fits_no_plan_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    """The smallest plan that is named fits, and nothing that is written."""
    asked = ("plan", ONE, *V100, "--devices", "2", "--memory")
    done = run(*asked, "7e5", "-o", str(tmp_path / "plan.json"))
    assert done.code == 2
    error = re.fullmatch(
        r"primepar: error: expected a plan within the 700,000 bytes of --memory, got none: the "
        r"smallest takes ([\d,]+) bytes, ([\d,]+) too many: take more --devices or a smaller "
        r"--batch\n", done.err
    )  # fmt: skip
    assert error is not None, done.err
    least, more = (int(number.replace(",", "")) for number in error.groups())
    assert least == 700_000 + more
    assert not [*tmp_path.iterdir()]
    report = json.loads(run(*asked, str(least), "--json").out)
    assert max(report["held"]) <= least
    staged = run(*PLAN, *ON_FOUR, "--pp", "2", "--explain").err
    assert staged == (
        "primepar: error: --explain: expected the fastest plan to have one stage, got 2 stages: "
        "write --pp 1\n"
    )


def test_several_batches_and_devices_are_one_table_and_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "plans.svg"
    done = run(*PLAN, "--batch", "2,4", "--devices", "1,2", "--tokens", "1e9", "-o", str(path))
    assert (done.code, done.err) == (0, "")
    head, *rows = [line.split() for line in done.out.splitlines()[:5]]
    assert head[:4] == ["devices", "batch", "p", "x"]
    assert [row[:2] for row in rows] == [["1", "2"], ["1", "4"], ["2", "2"], ["2", "4"]]
    assert any(row[-1] == "*" for row in rows)
    assert path.read_text().count("<circle") == 4
    for wrong, text in (
        (("--batch", "2,x"), "--batch: expected a number from 1, or several as 8,16,32, got '2,x': "
         "write --batch 8"),
        (("--batch", "2,4", "-o", "plan.json"), "--output: expected a picture of several batches "
         "or devices, got plan.json: write plan.svg, or ask for one of them"),
    ):  # fmt: skip
        assert run(*PLAN, *wrong).err == f"primepar: error: {text}\n"


def test_the_frontier_has_what_no_other_is_better_than() -> None:
    known = [Point(1, 1, tokens_per_second=speed, memory=memory)
             for speed, memory in ((3.0, 5.0), (2.0, 4.0), (2.0, 6.0), (3.0, 5.0))]  # fmt: skip
    assert frontier([*known, Point(1, 1, refusal="none fits")]) == [known[0], known[1], known[3]]
