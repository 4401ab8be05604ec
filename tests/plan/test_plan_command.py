"""`primepar plan`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from command import printed, run

import primepar
from primepar.models.config_json import load_config
from primepar.plan import cluster as cluster_module
from primepar.plan import load_plan, preset_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.search.explanation_text import words
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.simulator.step import simulate_step

MODEL = str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json")
V100 = ("plan", MODEL, "--cluster", "v100-8x4")
SECONDS, KEPT = (
    ("compute", "communication", "reduction", "update"),
    ("parameters", "gradients", "states", "stash"),
)
"""Terms of a cost whose sums are the seconds, and the bytes that are kept."""
PIPELINE = ("pipeline", *V100[1:], "--devices", "4")


def test_the_plan_is_written_and_printed(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = run(*V100, "--devices", "4", "--batch", "4", "-o", str(path))
    assert done.code == 0
    plan = load_plan(path)
    assert (plan.ranks, plan.batch) == (4, 4)
    lines = done.out.splitlines()
    table = [line.split() for line in lines[4 : lines.index("", 4) - 1]]
    assert all(len(words) == 8 for words in table)
    sequences = {words[0]: words[2] for words in table}
    assert sequences["blocks.0-3.qkv"] == plan.sequences["blocks.2.qkv"]
    assert sequences["head"] == plan.sequences["head"]
    assert done.out.endswith(f"wrote {path}\n")


def test_json_has_the_times_whose_sum_is_that_of_the_step() -> None:
    report = printed(*V100, "--devices", "2", "--tokens", "1e9")
    choices, terms = report["choices"], report["terms"]
    assert [choice["layers"] for choice in choices] == [1, *[4] * 10, 1, 1, 1]
    total = sum((choice["seconds"] + choice["moving"]) * choice["layers"] for choice in choices)
    assert report["priced"] + report["hidden_sums"] == pytest.approx(total)
    assert report["simulated"] is True
    assert report["seconds"] == pytest.approx(report["priced"], rel=0.25)
    for choice in choices:
        seconds, kept = choice["seconds"], choice["kept"]
        assert seconds == pytest.approx(sum(choice["terms"][term] for term in SECONDS))
        assert kept == pytest.approx(sum(choice["terms"][term] for term in KEPT))
    assert total == pytest.approx(sum(terms[term] for term in SECONDS) + report["moving"])
    assert report["memory"] == pytest.approx(sum(terms[term] for term in (*KEPT, "running")))
    assert report["tokens_per_second"] == pytest.approx(8 * 32 / report["seconds"])
    products, attention = 4 * 12 * 64 * 64 + 64 * 257, 2 * 4 * 64 * 32
    flops = 6 * (products + attention) * report["tokens_per_second"]
    assert report["mfu"] == pytest.approx(flops / (2 * 15.7e12))
    assert sum(report["axes"].values()) == pytest.approx(report["priced"])
    priced = sum(report["baseline"]["axes"].values())
    assert priced == pytest.approx(report["baseline"]["seconds"], rel=0.25)
    assert report["days"] == pytest.approx(1e9 / report["tokens_per_second"] / 86400)
    assert report["only_priced"] is None
    assert report["limit"] == 32 * 2**30
    assert report["fits"] is True
    assert {len(choice["neighbours"]) for choice in report["choices"]} == {0}


def test_splits_are_listed_from_the_best_on() -> None:
    rows = json.loads(run(*PIPELINE, "--json").out)
    assert {(row["stages"], row["replicas"], row["parts"]) for row in rows} == {
        (1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)
    }  # fmt: skip
    assert all(row["microbatches"] * row["microbatch"] * row["replicas"] == 8 for row in rows)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    lines = run(*PIPELINE).out.splitlines()
    assert lines[0].split() == [
        "stages", "replicas", "devices", "microbatches", "chunks", "shards", "again", "ms",
        "bubble", "MiB",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[1:]] == [str(row["stages"]) for row in rows]


def test_what_no_split_fits_is_refused() -> None:
    done = run("pipeline", "opt-175b", "--cluster", "v100-8x4", "--devices", "1")
    assert done.code == 2
    assert re.fullmatch(
        r"primepar: error: expected a split within the 34,359,738,368 bytes of a device of the "
        r"cluster 8 x 4 V100, as in the PrimePar paper, got none: the smallest of their fastest "
        r"plans takes [\d,]+ bytes, [\d,]+ too many: take more --devices or a smaller --batch\n",
        done.err,
    )


def test_megatrons_fastest_plan_is_compared_with_the_best() -> None:
    report = printed(*V100, "--devices", "2")
    model, cluster = load_config(Path(MODEL)), load_cluster("v100-8x4")
    seconds = {}
    for preset in ("megatron", "data", "megatron-sp"):
        plan = preset_plan(preset, model, 2, 8)
        run_ = simulate_step(plan, 8, model.context, cluster, "float32")
        seconds[preset] = run_.seconds
    megatron = report["baseline"]
    assert megatron["seconds"] == pytest.approx(seconds[megatron["plan"]])
    assert megatron["fits"] is True
    assert all(report["seconds"] <= 1.0001 * other for other in seconds.values())
    price = primepar.price("megatron", "v100-8x4", model=MODEL, devices=2)
    megatron, lines = price.baseline, words(price).splitlines()
    assert megatron is not None
    place = next(n for n, line in enumerate(lines) if line.startswith("Megatron's fastest"))
    terms = lines[place + 1].removeprefix("  this plan takes more than that, ms: ").split(", ")
    more = {axis: price.axes[axis] - megatron.axes[axis] for axis in price.axes}
    largest = sorted(more, key=lambda axis: -abs(more[axis]))[: len(terms)]
    assert terms == [f"{axis} {1e3 * more[axis]:+,.1f}" for axis in largest]


def test_explained_neighbours_have_prices_of_their_own() -> None:
    report = printed(*V100, "--devices", "4", "--explain")
    for choice in report["choices"]:
        prices = [(round(neighbour["more_seconds"], 9), round(neighbour["more_bytes"]))
                  for neighbour in choice["neighbours"]]  # fmt: skip
        assert len(set(prices)) == len(prices) == 3
        assert (0.0, 0) not in prices
    lines = run(*V100, "--devices", "2", "--explain").out.splitlines()
    assert max(map(len, lines)) <= 110
    assert sum(bool(re.fullmatch(r"    \S+: [+-].* ms, .* MiB(, as \d+ more)?", line))
               for line in lines) > 20  # fmt: skip


def test_neighbours_are_priced_with_all_else_as_it_is() -> None:
    model, cluster = load_config(Path(MODEL)), load_cluster("v100-8x4")
    result = search(Planner.of(model, cluster, 4, 4, None, "paper"))
    planner = result.planner
    for name in ("embedding", "blocks.1.norm1", "blocks.0.fc1", "head", "loss"):
        costs = planner.costs_around(name, result.choices)
        base = planner.cost(result.choices)
        for other in range(len(costs)):
            changed = planner.cost(result.choices | {name: other})
            assert changed - base == pytest.approx(costs[other] - costs[result.choices[name]])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--devices", "3"),
         "--devices: expected a power of two, at most the 32 devices of the cluster 8 x 4 V100, as "
         "in the PrimePar paper, got 3: take 2, or primepar pipeline, for any number"),
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
        (("--devices", "2", "--objective", "pareto", "--explain"),
         "--explain: expected none together with --objective pareto, as it lists the whole Pareto "
         "front: leave it out"),
        (("--devices", "2", "--objective", "pareto", "--alpha", "1"),
         "--alpha: expected none together with --objective pareto, as it lists the whole Pareto "
         "front: leave it out"),
        (("--devices", "4", "--objective", "memory", "--within", "0.0005"),
         "expected a plan with a step within the 0.0005 seconds of --within, got none: the "
         "shortest takes 0.00165077 seconds, 0.0012 too many"),
        (("--devices", "2", "--alpha", "-1"),
         "--alpha: expected 0 or more seconds for a GiB, got -1.0"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_line(
    options: tuple[str, ...], error: str
) -> None:
    done = run(*V100, *options)
    assert (done.code, done.err) == (2, f"primepar: error: {error}\n")


@pytest.mark.parametrize("memory", ["1e6", None])
def test_a_model_that_fits_no_plan_is_refused_with_what_it_lacks(
    tmp_path: Path, memory: str | None
) -> None:
    path, small = tmp_path / "plan.json", tmp_path / "small.toml"
    shipped = Path(cluster_module.__file__).parent / "clusters" / "v100-8x4.toml"
    small.write_text(re.sub(r"(?m)^memory = .*$", "memory = 1e6", shipped.read_text()))
    where = ("--memory", memory) if memory else ("--cluster", str(small))
    done = run(*V100, "--devices", "4", *where, "-o", str(path))
    whose = "--memory" if memory else "a device of the cluster 8 x 4 V100, as in the PrimePar paper"
    assert (done.code, done.err) == (
        2,
        f"primepar: error: expected a plan within the 1,000,000 bytes of {whose}, got none: the "
        "smallest takes 1,991,044 bytes, 991,044 too many: take --devices 16\n",
    )
    assert not path.exists()
    if memory is None:
        return
    exact = run(*V100, "--devices", "4", "--memory", "1991044", "--json")
    report = json.loads(exact.out)
    assert max(report["held"]) == 1991044 < report["memory"]
    assert run(*V100, "--devices", "4", "--memory", "1991043").code == 2


def test_a_plan_that_the_search_adds_up_to_more_is_taken_where_a_device_holds_less() -> None:
    fastest = printed(*V100, "--devices", "4")
    between = (max(fastest["held"]) + fastest["memory"]) / 2
    assert max(fastest["held"]) < between < fastest["memory"]
    bounded = json.loads(run(*V100, "--devices", "4", "--memory", str(between), "--json").out)
    assert max(bounded["held"]) <= between
    assert bounded["seconds"] <= 1.1 * fastest["seconds"]


def test_the_front_begins_with_the_fastest_plan_and_memory_falls_along_it() -> None:
    front = json.loads(run(*V100, "--devices", "2", "--objective", "pareto", "--json").out)["plans"]
    fastest = printed(*V100, "--devices", "2")
    assert front[0]["seconds"] == pytest.approx(fastest["priced"], rel=0.1)
    assert all(one["seconds"] < other["seconds"] and one["memory"] > other["memory"]
               for one, other in pairwise(front))  # fmt: skip
    middle = front[len(front) // 2]
    within = 1.3 * middle["seconds"]  # all sums count there, also those during backward
    bounds = ("--objective", "memory", "--within", str(within))
    plan = json.loads(run(*V100, "--devices", "2", *bounds, "--json").out)
    assert plan["memory"] <= middle["memory"]
    assert plan["priced"] <= within
