"""Simulation of replicas that step by themselves and are averaged every H steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run
from step_cases import SMALL

from primepar.operators import lower_step
from primepar.plan import preset_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.run import simulate
from primepar.plan.simulator.step import copied_to_next_ranks, simulate_period, simulate_step

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("--model", str(ROOT / "docs" / "examples" / "config.json"), "--devices", "4")
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
    given = ("simulate", "M2,megatron", *MODEL, "--batch", "4", "--cluster", "h200-8")
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


WRONG = {
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


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_input_ends_in_one_line(arguments: tuple[str, ...]) -> None:
    done = run("simulate", *arguments, "--cluster", "h200-8")
    assert done == (2, "", f"primepar: error: {WRONG[arguments]}\n")
