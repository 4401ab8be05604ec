"""A plan's step simulated: its program's own counts, operations by formula, and the command.

Simulation of replicas that step by themselves and are averaged every H steps.

The step of a plan with many equal layers, simulated in part, next to the whole simulation.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import example, run
from lowered_steps import lower_step
from partitioned_cases import SHAPES
from step_cases import SMALL

from primepar.models import ModelConfig, load_config
from primepar.plan import preset_plan, save_plan
from primepar.plan.cluster import load_cluster, shipped_clusters
from primepar.plan.plan import Plan
from primepar.plan.simulator import step
from primepar.plan.simulator.run import Simulation, simulate
from primepar.plan.simulator.step import (
    copied_to_next_ranks,
    is_large,
    simulate_equal_layers,
    simulate_period,
    simulate_step,
)
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate

CONFIG = Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json"
H200 = load_cluster("h200-8")


@pytest.fixture(scope="module")
def model() -> ModelConfig:
    return replace(load_config(CONFIG), layers=1)


@pytest.mark.parametrize("name", ["M2,megatron", "data", "primepar"])
def test_a_step_sends_and_holds_what_its_program_does_on_emulated_devices(
    model: ModelConfig, name: str
) -> None:
    plan = preset_plan(name, model, 4)
    simulated = simulate_step(plan, 4, 4, H200, "float32")
    program = lower_step(plan, 4, 4)
    emulated = emulate(program, memories(program))
    assert simulated.sent == [4 * elements for elements in emulated.sent]
    assert simulated.peak == [4 * elements for elements in emulated.peak]


@pytest.mark.parametrize(("name", "batch"), [("megatron", 1), ("data", 4), ("data", 2)])
def test_operations_are_those_of_products_and_attention(
    model: ModelConfig, name: str, batch: int
) -> None:
    """Also where two ranks share a sequence; the vocabulary is padded to the ranks that cut it."""
    plan = preset_plan(name, model, 4)
    rows, hidden, vocabulary = batch * 8, model.hidden, 260 if name == "megatron" else 257
    weights = hidden * (3 * hidden + hidden + 2 * model.ffn + vocabulary)
    attention = (2 + 5) * 2 * rows * 8 * hidden
    simulated = simulate_step(plan, batch, 8, H200, "float32")
    assert sum(simulated.operations) == 3 * 2 * rows * weights + attention


# The command

P2X2 = ("simulate", "P2x2", "--shape", "4096,4096,4096", "--cluster", "v100-8x4")


def test_the_command_prints_time_memory_and_links() -> None:
    """A step takes 1.22 ms of products; with hops, 2 of 16.8 MB at 25 GB/s, it takes 1.35 ms.

    Four steps have hops, so the links are busy for 5.42 ms.
    """
    done = run(*P2X2)
    assert (done.code, done.err) == (0, "")
    assert (
        done.out
        == """\
P2x2 on 4 devices of 8 x 4 V100, as in the PrimePar paper, float32
  time       7.764 ms
  operations 412.3 G, 53.11 T per second, 89.7% of what products achieve
  computing  7.373 ms per device
  transfers  5.419 ms per device, 92.8% hidden by computing
  sent       134.2 MB per device
  peak       134.2 MB per device, of 34.36 GB
  links      536.9 MB within 4 devices, the busiest 69.1% of the time

                  0                                                                         7.764 ms
"""
        + "".join(
            f"rank {rank}  products  "
            "FFFFFFFFFFFFF.FFFFFFFFFFFFFBBBBBBBBBBBBB.BBBBBBBBBBBBBGGGGGGGGGGGGG..GGGGGGGGGGGGG\n"
            "        links     "
            "---------------............----------------------.....----------------------......\n"
            for rank in range(4)
        )
        + "F forward  B backward  G gradient  o other  - message  = collective  . nothing\n"
    )


def test_json_has_the_same_numbers() -> None:
    report = json.loads(run(*P2X2, "--json").out)
    block = 4 * 2048**2
    assert report["ranks"] == 4
    assert report["operations"] == [3 * 2 * 4096**3 // 4] * 4
    assert report["sent"] == [8 * block] * 4
    assert report["fits"] is True
    assert sum(row["bytes"] for row in report["traffic"] if row["way"] == "out") == 32 * block


def test_a_plan_prints_tokens_per_second() -> None:
    command = ("simulate", "megatron", "--model", example(1), "--devices", "2", "--batch", "2",
               "--positions", "8", "--cluster", "h200-8")  # fmt: skip
    report = json.loads(run(*command, "--json").out)
    step = report["step"]
    assert (step["batch"], step["positions"], report["dtype"]) == (2, 8, "bfloat16")
    assert step["tokens_per_second"] == 16 / report["seconds"]
    assert run(*command).out.splitlines()[0] == (
        "megatron on 2 devices of 8 x H200, NVLink, bfloat16, a step of 2 sequences of 8 tokens"
    )


@pytest.mark.parametrize(("suffix", "start"), [("svg", "<svg"), ("json", "{"), ("txt", "   ")])
def test_the_time_line_is_written(tmp_path: Path, suffix: str, start: str) -> None:
    path = tmp_path / f"timeline.{suffix}"
    done = run(*P2X2, "-o", str(path))
    assert done.out.splitlines()[-1] == f"wrote {path}"
    assert path.read_text().startswith(start)


def test_too_little_memory_is_printed() -> None:
    shape = ("--shape", "65536,65536,65536")
    done = run("simulate", "K2", *shape, "--cluster", "v100-8x4")
    assert "more than its 34.36 GB" in done.out
    printed = run("simulate", "K2", *shape, "--cluster", "v100-8x4", "--json").out
    assert json.loads(printed)["fits"] is False


WRONG = {
    ("P2x2", "--cluster", "h200-8"): (
        "P2x2: expected the operator's shape, of which its time is, got none: "
        "write --shape 4096,4096,4096"
    ),
    ("docs/examples/overlap.json", "--shape", "8,8,8", "--cluster", "h200-8"): (
        "docs/examples/overlap.json: expected no --shape, as a program names its own, got --shape "
        '8,8,8: write it into the file, "shape": {"M": 4, "N": 4, "K": 4}'
    ),
    ("P2x2", "--shape", "8,8", "--cluster", "h200-8"): (
        "--shape: expected M,N,K or B,M,N,K, got '8,8': write it like --shape 8,8,8"
    ),
    ("P2x2", "--shape", "8,8,8", "--cluster", "h300"): (
        f"h300: expected a cluster file or one of {', '.join(shipped_clusters())}, got no such "
        "file or directory: write h200"
    ),
    ("P4x4", "--shape", "8,8,8", "--cluster", "h200-8"): (
        "expected at most the 8 devices of the cluster 8 x H200, NVLink, got 16 ranks: take a "
        "larger cluster"
    ),
    ("P2x2", "--shape", "8,8,8", "--cluster", "h200-8", "--dtype", "int8"): (
        "expected a data type that the cluster 8 x H200, NVLink has rates of (bfloat16, float8, "
        "float16, float32), got int8: take one of these, or add [rates.int8]"
    ),
    ("P2x2", "--shape", "8,8,8", "--cluster", "h200-8", "-o", "a.png"): (
        "--output: expected a name that ends with .svg (the picture), .json (the trace), .txt "
        "(the text) or .et (a Chakra trace for each rank), got a.png"
    ),
}


@pytest.mark.parametrize("arguments", WRONG, ids=lambda words: " ".join(words[1:]))
def test_wrong_input_is_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    done = run("simulate", *arguments)
    assert (done.code, done.out, done.err) == (2, "", f"primepar: error: {WRONG[arguments]}\n")


def test_a_deadlock_ends_with_1() -> None:
    path = CONFIG.parent / "head-on.json"
    done = run("simulate", str(path), "--cluster", "h200-8")
    assert (done.code, done.out) == (1, "")
    expected = "primepar: error: expected every rank to end, got some that never do: "
    assert done.err.startswith(expected)


MODEL = ("--model", str(CONFIG), "--devices", "4")
CLUSTER = load_cluster("h200-8")


def test_a_step_has_its_share_of_an_average() -> None:
    plan = preset_plan("M2,megatron", SMALL["gpt2"], 4)
    runs = [simulate_period(plan, 4, 4, CLUSTER, "bfloat16", period) for period in (1, 2, 8)]
    for simulated in runs:
        share = simulated.average.seconds / simulated.period
        assert simulated.seconds == simulated.local.seconds + share
        assert simulated.replicas == 2
        assert len(simulated.local.peak) == len(simulated.average.peak) == 4
    first, *_, last = runs
    assert first.seconds > last.seconds > first.local.seconds


@pytest.mark.parametrize("name", ["M2,megatron", "data"])
def test_with_a_period_of_one_a_step_sends_what_a_synchronous_one_does(name: str) -> None:
    """All but the loss and the squares of gradients, which are numbers of the whole batch."""
    plan = preset_plan(name, SMALL["llama"], 4)
    together = simulate_step(plan, 4, 4, CLUSTER, "float32")
    averaged = simulate_period(plan, 4, 4, CLUSTER, "float32", 1)
    assert 0 <= max(together.sent) - averaged.sent <= 4 * 12


def test_copies_that_share_no_link_take_as_long_as_one() -> None:
    program = lower_step(preset_plan("megatron", SMALL["gpt2"], 2), 2, 4)
    alone = simulate(program, CLUSTER, "float32")
    for copies in (1, 2, 4):
        together = simulate(copied_to_next_ranks(program, copies), CLUSTER, "float32")
        assert together.seconds == pytest.approx(alone.seconds, rel=1e-12)
        assert together.sent == alone.sent * copies


def test_copies_wait_for_a_link_that_they_share() -> None:
    """On `v100-8x4` a copy on two devices is inside of a node; with three, one is on two nodes."""
    cluster = load_cluster("v100-8x4")
    inside = lower_step(preset_plan("megatron", SMALL["gpt2"], 2), 2, 4)
    across = copied_to_next_ranks(lower_step(preset_plan("data", SMALL["gpt2"], 3), 3, 4), 2)
    alone = simulate(inside, cluster, "float32")
    assert simulate(copied_to_next_ranks(inside, 2), cluster, "float32").seconds == alone.seconds
    first = simulate(lower_step(preset_plan("data", SMALL["gpt2"], 3), 3, 4), cluster, "float32")
    assert simulate(across, cluster, "float32").seconds > first.seconds


def test_the_command_prints_both_programs() -> None:
    model = ("--model", example(1), "--devices", "4", "--batch", "4")
    given = ("simulate", "M2,megatron", *model, "--cluster", "h200-8")
    done = run(*given, "--average-every", "4", "--json")
    assert done.code == 0
    answer = json.loads(done.out)
    local, average = answer["local_step"], answer["average"]
    assert answer["seconds"] == local["seconds"] + average["seconds"] / 4
    assert answer["sent"] == pytest.approx(local["sent"] + average["sent"] / 4)
    lines = run(*given, "--average-every", "4").out.splitlines()
    assert lines[1] == "  2 replicas, averaged after every 4 steps"
    assert run(*given, "--average-every", "1").out.splitlines()[1] == (
        "  2 replicas, averaged after every step"
    )


WRONG_PERIODS = {
    ("M2,megatron", *MODEL, "--average-every", "0"): "--average-every: expected 1 or more, got 0",
    ("megatron", *MODEL, "--average-every", "2"): "plan: expected replicas to average, all "
    "operators with the same first cut of the rows, like M2,K2, got N4 of embedding: begin every "
    "sequence with M2, or leave the period out",
    ("P2x2", "--average-every", "2"): "--average-every: expected a plan, whose replicas are "
    "averaged, got P2x2: leave --average-every out",
    ("M2,megatron", *MODEL, "--average-every", "2", "-o", "t.svg"): "--output: expected none "
    "together with --average-every, which simulates two programs, got t.svg: leave one of the two "
    "out",
}


@pytest.mark.parametrize("arguments", WRONG_PERIODS, ids=" ".join)
def test_wrong_input_ends_in_one_line(arguments: tuple[str, ...]) -> None:
    done = run("simulate", *arguments, "--cluster", "h200-8")
    assert done == (2, "", f"primepar: error: {WRONG_PERIODS[arguments]}\n")


STEP = (4, 4)
"""Sequences, and tokens of each."""


def plan_of(name: str, layers: int) -> Plan:
    return preset_plan(name, replace(SHAPES["llama"], layers=layers), 4)


def amounts(simulated: Simulation) -> list[object]:
    """All sums of a run that are integers."""
    carried = {(way.level, way.first, way.out): way.bytes for way in simulated.traffic}
    return [simulated.sent, simulated.operations, carried]


@pytest.mark.parametrize(("name", "dtype"), [("primepar", "float32"), ("M2,megatron", "bfloat16")])
def test_it_is_the_whole_simulation(name: str, dtype: str) -> None:
    """What is sent, computed and carried is equal; two layers more take as long as the last two."""
    plan = plan_of(name, 6)
    whole = simulate_step(plan, *STEP, H200, dtype)
    part = simulate_equal_layers(plan, *STEP, H200, dtype)
    assert part.left_out == 2
    assert amounts(part) == amounts(whole)
    assert part.peak == whole.peak
    assert part.seconds == pytest.approx(whole.seconds, rel=1e-4)
    assert part.computing == pytest.approx(whole.computing, rel=1e-9)
    for of_part, of_whole in zip(part.communication, whole.communication, strict=True):
        assert of_part.total == pytest.approx(of_whole.total, rel=3e-2)
        assert of_part.share == pytest.approx(of_whole.share, abs=3e-2)


def test_large_plans_alone_are_simulated_in_part() -> None:
    """Of up to 256 layers of devices all are simulated, and all where no seven are equal."""
    assert not is_large(plan_of("megatron", 64))
    assert is_large(plan_of("megatron", 65))
    several = preset_plan("1f1b:2x4,data", replace(SHAPES["llama"], layers=130), 4)
    assert not is_large(several)


def test_the_command_states_how_many_layers_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Chakra trace has all of them."""
    monkeypatch.setattr(step, "MOST_WHOLE", 8)
    save_plan(plan_of("megatron", 6), tmp_path / "plan.json")
    command = ("simulate", str(tmp_path / "plan.json"), "--cluster", "h200-8")
    assert run(*command).out.splitlines()[2] == (
        "  layers     2 are not simulated: their time follows from that of equal ones, and they "
        "are not in the timeline"
    )
    whole = run(*command, "-o", str(tmp_path / "trace.et"), "--json")
    assert json.loads(whole.out)["step"]["layers_left_out"] == 0
