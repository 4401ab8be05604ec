"""`primepar plan` of a plan: every plan has a price, next to the best one."""

from __future__ import annotations

import inspect
import json
from math import ceil
from pathlib import Path

import msgspec
import pytest
from command import printed, run
from profiles import IS_LONG

import primepar
from primepar.commands.options import json_text
from primepar.models.config_json import load_config
from primepar.partition import PrimePar
from primepar.plan import Plan, load_plan, preset_plan, save_plan
from primepar.plan import cluster as cluster_module
from primepar.plan.pipeline import split_plan

MODEL = str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json")
V100 = ("--cluster", "v100-8x4")
ON_FOUR = ("--model", MODEL, "--devices", "4")

STAGED = [
    ("1f1b:2x4,M2,megatron", 4),
    ("gpipe:2x4,megatron-sp", 4),
    ("interleaved-1f1b:2x4,data", 4),
    ("1f1b:1x2,summa", 4),
    ("zb-h1:4x4,megatron", 4),
    ("1f1b:2x2,primepar", 8),
    ("data", 3),
    ("zbv:2x4,megatron", 4),
]


def test_a_preset_is_priced_operator_by_operator_next_to_the_best_plan() -> None:
    price = json.loads(run("plan", "megatron", *ON_FOUR, *V100, "--json").out)
    best = printed("plan", MODEL, *V100, "--devices", "4")
    assert price["best"]["seconds"] == best["seconds"]
    assert price["best"]["memory"] == best["memory"]
    assert price["simulated"] is best["simulated"] is True
    more = sum(choice["more"] for choice in price["choices"])
    work = [plan["priced"] + plan["hidden_sums"] for plan in (price, best)]
    assert more == pytest.approx(work[0] - work[1])
    total = sum(c["layers"] * (c["seconds"] + c["moving"]) for c in price["choices"])
    assert total == pytest.approx(work[0])
    assert price["baseline"] == best["baseline"]


def test_the_best_plan_takes_nothing_more_than_the_best(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    best = json.loads(run("plan", MODEL, *V100, "--devices", "4", "-o", str(path), "--json").out)
    price = json.loads(run("plan", str(path), *V100, "--json").out)
    assert [choice.pop("more") for choice in price["choices"]] == [0.0] * len(price["choices"])
    assert price.pop("best")["seconds"] == best["seconds"]
    for choice in best["choices"]:
        assert choice.pop("more") is None
    assert best.pop("best") is None
    price["gap"] = best["gap"]
    assert price == best


def test_the_best_is_within_the_memory_of_a_device_where_some_plan_is(tmp_path: Path) -> None:
    fastest = primepar.price("megatron", "v100-8x4", model=MODEL, devices=4).best
    shipped = Path(cluster_module.__file__).parent / "clusters" / "v100-8x4.toml"
    seconds = []
    for memory in (2_100_000, 1000):
        small = tmp_path / f"{memory}.toml"
        lines = shipped.read_text().splitlines()
        small.write_text("\n".join(
            f"memory = {memory}" if line.startswith("memory =") else line for line in lines
        ))  # fmt: skip
        best = primepar.price("megatron", small, model=MODEL, devices=4).best
        assert best is not None
        assert best.fits == (memory == 2_100_000)
        seconds.append(best.seconds)
    assert fastest is not None
    assert seconds[0] > seconds[1]
    assert seconds[1] == pytest.approx(fastest.seconds, rel=0.25)


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
    priced = run("plan", "plan.json", *V100, "--json").out
    expected = json.loads(json_text(primepar.price(known, "v100-8x4")))
    assert json.loads(priced.replace("mine.py:Mine2x2", "P2x2")) == expected
    assert expected["seconds"] > expected["best"]["seconds"]


def test_layers_that_differ_are_rows_of_their_own(tmp_path: Path) -> None:
    plan = preset_plan("M2,megatron", load_config(Path(MODEL)), 4, 8)
    other = preset_plan("megatron", plan.model, 4).sequences
    sequences = {
        name: other[name] if name.startswith("blocks.1.") else text
        for name, text in plan.sequences.items()
    }
    path = tmp_path / "mixed.json"
    save_plan(Plan(model=plan.model, ranks=4, sequences=sequences), path)
    price = primepar.price(load_plan(path), "v100-8x4")
    layers = {choice.operator: choice.layers for choice in price.choices}
    assert [layers[f"blocks.{which}.qkv"] for which in ("0", "1", "2-3")] == [1, 1, 2]
    moving = {choice.operator: choice.moving for choice in price.choices}
    assert moving["blocks.0.norm1"] == 0 < moving["blocks.1.norm1"]
    total = sum(choice.layers * (choice.seconds + choice.moving) for choice in price.choices)
    assert total == pytest.approx(price.priced + price.hidden_sums)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("megatron", "megatron: expected the model and the devices of a preset, got no --model: "
         "write --model opt-6.7b"),
        ("megatron --model MODEL", "megatron: expected the model and the devices of a preset, got "
         "no --devices: write --devices 8"),
        ("P2x2", "expected a config.json or the name of a published model, got P2x2: write "
         "gpt2-xl, gpt2 or phi-2"),
        ("plan.json --alpha 1", "--alpha: expected none together with plan.json, as that is a "
         "plan, which is priced: leave it out"),
        ("megtron --model MODEL --devices 4", "expected a preset plan (megatron, megatron-sp, "
         "summa, tesseract, 3d, primepar, stationary, data), or M<d>, before one as in M2,megatron,"
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
    ],
)  # fmt: skip
def test_what_has_no_price_is_refused_in_one_line(
    arguments: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_plan(preset_plan("megatron", load_config(Path(MODEL)), 4, 8), tmp_path / "plan.json")
    done = run("plan", *arguments.replace("MODEL", MODEL).split(), *V100)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"primepar: error: {error.replace('MODEL', MODEL)}\n"


def test_a_cluster_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    done = run("plan", "megatron", *ON_FOUR, "--cluster", "nope")
    assert (done.code, done.err) == (
        2,
        "primepar: error: nope: expected a cluster file or one of a100, b200, cpu-gloo-4, gb200, "
        "h100, h200, mi300x, torus-4x4, tpu-v5p, v100, v100-8x4, got no such file or directory\n",
    )


@pytest.mark.parametrize(("preset", "devices"), STAGED if IS_LONG else STAGED[::2])
def test_plans_with_stages_and_on_any_number_of_devices_have_a_price(
    preset: str, devices: int
) -> None:
    batch = 24 if devices == 3 else 8
    price = primepar.price(preset, "v100-8x4", model=MODEL, devices=devices, batch=batch)
    total = sum(choice.layers * (choice.seconds + choice.moving) for choice in price.choices)
    assert total + price.waiting - price.hidden_sums == pytest.approx(price.seconds)
    assert price.seconds * price.tokens_per_second == pytest.approx(batch * 32)
    assert price.counted
    assert 0 < max(price.held) <= price.memory
    assert price.best is not None
    assert price.best.seconds <= price.seconds * (1 + 1e-9)


def test_a_split_that_was_written_has_the_price_that_it_was_listed_with(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    splits = ("pipeline", MODEL, *V100, "--devices", "4", "--recompute", "full")
    listed = json.loads(run(*splits, "--shard", "optimizer", "-o", str(path), "--json").out)
    price = json.loads(run("plan", str(path), *V100, "--json").out)
    assert price["seconds"] == pytest.approx(listed[0]["seconds"])
    assert price["memory"] == pytest.approx(listed[0]["memory"])
    assert price["terms"]["states"] == pytest.approx(listed[0]["states"])


def test_a_plan_of_stages_prints_what_its_devices_wait() -> None:
    lines = run("plan", "1f1b:2x4,M2,megatron", *ON_FOUR, *V100).out.splitlines()
    assert lines[1] == "1f1b of 2 x 4 stages x micro-batches: times are means over stages"
    assert max(map(len, lines)) <= 103
    assert sum(line.startswith("a device waits ") for line in lines) == 1
    assert sum(line.startswith("blocks.2.input ") for line in lines) == 1


def test_all_plans_of_a_front_are_written_and_have_the_times_that_are_listed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "front"
    front = ("plan", MODEL, *V100, "--devices", "2", "--objective", "pareto", "-o", str(folder))
    listed = json.loads(run(*front, "--json").out)["plans"]
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"front-{number:02}.json" for number in range(1, len(listed) + 1)]
    last = primepar.price(folder / names[-1], "v100-8x4")
    assert last.priced == pytest.approx(listed[-1]["seconds"])
    assert last.memory == pytest.approx(listed[-1]["memory"])
    assert primepar.simulate(folder / names[-1], "v100-8x4").seconds > 0
    done = run(*front)
    assert (done.code, done.err) == (
        2,
        "primepar: error: --output: expected a folder without plans of a front, got "
        f"{folder} with front-01.json: name another\n",
    )


def test_any_row_of_the_splits_is_written(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    splits = ("pipeline", MODEL, *V100, "--devices", "4", "-o", str(path))
    rows = json.loads(run(*splits, "--row", "3", "--json").out)
    assert primepar.price(path, "v100-8x4").seconds == pytest.approx(rows[2]["seconds"])
    assert primepar.simulate(path, "v100-8x4").seconds > 0
    done = run(*splits, "--row", "99")
    error = f"--row: expected 1 to {len(rows)}, the rows of the list, got 99: take {len(rows)}"
    assert (done.code, done.err) == (2, f"primepar: error: {error}\n")


def test_a_long_step_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_plan, "MOST_PASSES_COUNTED", 15)
    arguments = "plan", "1f1b:2x4,M2,megatron", *ON_FOUR, *V100
    price = json.loads(run(*arguments, "--json").out)
    assert price["counted"] is False
    assert price["sent"] == []
    assert set(price["held"]) == {ceil(price["memory"])}
    lines = run(*arguments).out.splitlines()
    assert sum(line == "a device holds at most 2.40 MiB of 32.00 GiB" for line in lines) == 1
