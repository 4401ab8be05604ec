"""`primepar plan`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from command import run

from primepar.models.config_json import load_config
from primepar.plan import cluster as cluster_module
from primepar.plan import load_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search

MODEL = str(Path(__file__).resolve().parent.parent / "docs" / "examples" / "config.json")
V100 = ("plan", MODEL, "--cluster", "v100-8x4")


def test_the_plan_is_written_and_told(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    said = run(*V100, "--devices", "4", "--batch", "4", "-o", str(path))
    assert said.code == 0
    plan = load_plan(path)
    assert (plan.ranks, plan.batch) == (4, 4)
    table = [line.split() for line in said.out.splitlines()[3:-3]]
    sequences = {words[0]: words[1] for words in table}
    assert sequences["blocks.0-3.qkv"] == plan.sequences["blocks.2.qkv"]
    assert sequences["head"] == plan.sequences["head"]
    assert said.out.endswith(f"wrote {path}\n")


def test_json_has_the_times_whose_sum_is_that_of_the_step() -> None:
    told = json.loads(run(*V100, "--devices", "2", "--json").out)
    layers = {True: 4, False: 1}
    total = sum((each["seconds"] + each["moving"]) * layers[each["operator"].startswith("blocks")]
                for each in told["choices"])  # fmt: skip
    assert told["seconds"] == pytest.approx(total)
    assert told["fits"] is True
    assert {len(each["neighbours"]) for each in told["choices"]} == {0}


def test_splits_are_listed_from_the_best_on() -> None:
    rows = json.loads(run(*V100, "--devices", "4", "--pipeline", "--json").out)
    assert {(row["stages"], row["replicas"], row["parts"]) for row in rows} == {
        (1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)
    }  # fmt: skip
    assert all(row["microbatches"] * row["microbatch"] * row["replicas"] == 8 for row in rows)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    said = run(*V100, "--devices", "4", "--pipeline").out.splitlines()
    assert said[0].split() == [
        "stages", "replicas", "devices", "microbatches", "ms", "bubble", "MiB"
    ]  # fmt: skip
    assert [line.split()[0] for line in said[1:]] == [str(row["stages"]) for row in rows]


def test_what_no_split_fits_is_refused() -> None:
    said = run("plan", "opt-175b", "--cluster", "v100-8x4", "--devices", "1", "--pipeline")
    assert said.code == 2
    assert re.fullmatch(
        r"primepar: error: expected a split within the 34,359,738,368 bytes of a device of the "
        r"cluster 8 x 4 V100, as in the PrimePar paper, got none: the smallest of their fastest "
        r"plans takes [\d,]+ bytes, [\d,]+ too many: take more --devices or a smaller --batch\n",
        said.err,
    )


def test_neighbours_are_priced_with_all_else_as_it_is() -> None:
    model, cluster = load_config(Path(MODEL)), load_cluster("v100-8x4")
    found = search(Planner.of(model, cluster, 4, 4, None, "paper"))
    planner = found.planner
    for name in ("embedding", "blocks.1.norm1", "blocks.0.fc1", "head", "loss"):
        costs = planner.around(name, found.choices)
        base = planner.cost(found.choices)
        for other in range(len(costs)):
            changed = planner.cost(found.choices | {name: other})
            assert changed - base == pytest.approx(costs[other] - costs[found.choices[name]])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--devices", "3"),
         "--devices: expected a power of two, at most the 32 devices of the cluster 8 x 4 V100, as "
         "in the PrimePar paper, got 3: take 2"),
        (("--devices", "2", "--dtype", "bfloat16"),
         "expected a data type that the cluster 8 x 4 V100, as in the PrimePar paper has rates of "
         "(float32, float16), got bfloat16: take one of these, or add [rates.bfloat16]"),
        (("--devices", "2", "--objective", "memory"),
         "--objective memory: expected the seconds that a step may take, got none: write --within "
         "SECONDS"),
        (("--devices", "2", "--within", "1"),
         "--within: expected none beside --objective time, as time itself is least: leave it out"),
        (("--devices", "2", "--objective", "memory", "--within", "1", "--memory", "1e9"),
         "--memory: expected none beside --objective memory, as memory itself is least: leave it "
         "out"),
        (("--devices", "2", "--memory", "-1"), "--memory: expected more than 0 bytes, got -1"),
        (("--devices", "2", "--objective", "memory", "--within", "nan"),
         "--within: expected more than 0 seconds, got nan"),
        (("--devices", "2", "--pareto", "--explain"),
         "--explain: expected none beside --pareto, as it lists all plans that none beats: leave "
         "it out"),
        (("--devices", "2", "--pipeline", "--alpha", "1"),
         "--alpha: expected none beside --pipeline, which lists all splits by their time, got 1.0: "
         "leave it out"),
        (("--devices", "4", "--objective", "memory", "--within", "0.001"),
         "expected a plan with a step within the 0.001 seconds of --within, got none: the "
         "shortest takes 0.00148514 seconds, 0.00049 too many"),
        (("--devices", "2", "--alpha", "-1"),
         "--alpha: expected 0 or more seconds for a GiB, got -1.0"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_line(
    options: tuple[str, ...], error: str
) -> None:
    said = run(*V100, *options)
    assert (said.code, said.err) == (2, f"primepar: error: {error}\n")


@pytest.mark.parametrize("memory", ["1e6", None])
def test_a_model_that_fits_no_plan_is_refused_with_what_it_lacks(
    tmp_path: Path, memory: str | None
) -> None:
    path, small = tmp_path / "plan.json", tmp_path / "small.toml"
    shipped = Path(cluster_module.__file__).parent / "clusters" / "v100-8x4.toml"
    small.write_text(re.sub(r"(?m)^memory = .*$", "memory = 1e6", shipped.read_text()))
    where = ("--memory", memory) if memory else ("--cluster", str(small))
    said = run(*V100, "--devices", "4", *where, "-o", str(path))
    whose = "--memory" if memory else "a device of the cluster 8 x 4 V100, as in the PrimePar paper"
    assert (said.code, said.err) == (
        2,
        f"primepar: error: expected a plan within the 1,000,000 bytes of {whose}, got none: the "
        "smallest takes 1,984,132 bytes, 984,132 too many: take more --devices or a smaller "
        "--batch\n",
    )
    assert not path.exists()
    exact = run(*V100, "--devices", "4", "--memory", "1984132", "--json")
    told = json.loads(exact.out)
    assert max(told["held"]) == 1984132 < told["memory"]
    assert run(*V100, "--devices", "4", "--memory", "1984131").code == 2


def test_a_plan_that_the_search_adds_up_to_more_is_taken_where_a_device_holds_less() -> None:
    fastest = json.loads(run(*V100, "--devices", "4", "--json").out)
    between = (max(fastest["held"]) + fastest["memory"]) / 2
    assert max(fastest["held"]) < between < fastest["memory"]
    bounded = run(*V100, "--devices", "4", "--memory", str(between), "--json")
    assert json.loads(bounded.out) == fastest


def test_the_front_begins_with_the_fastest_plan_and_memory_falls_along_it() -> None:
    front = json.loads(run(*V100, "--devices", "2", "--pareto", "--json").out)
    fastest = json.loads(run(*V100, "--devices", "2", "--json").out)
    assert front[0]["seconds"] == pytest.approx(fastest["seconds"])
    assert all(one["seconds"] < other["seconds"] and one["memory"] > other["memory"]
               for one, other in pairwise(front))  # fmt: skip
    middle = front[len(front) // 2]
    bounds = ("--objective", "memory", "--within", str(middle["seconds"] + 1e-9))
    found = json.loads(run(*V100, "--devices", "2", *bounds, "--json").out)
    assert found["memory"] == middle["memory"]
