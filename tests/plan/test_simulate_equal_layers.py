"""The step of a plan with many equal layers, simulated in part, next to the whole simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import run
from partitioned_cases import SHAPES

from primepar.plan import preset_plan, save_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.plan import Plan
from primepar.plan.simulator import step
from primepar.plan.simulator.run import Simulation
from primepar.plan.simulator.step import is_large, simulate_equal_layers, simulate_step

H200 = load_cluster("h200-8")
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
    plan = plan_of(name, 8)
    whole = simulate_step(plan, *STEP, H200, dtype)
    part = simulate_equal_layers(plan, *STEP, H200, dtype)
    assert part.left_out == 4
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
    save_plan(plan_of("megatron", 8), tmp_path / "plan.json")
    command = ("simulate", str(tmp_path / "plan.json"), "--cluster", "h200-8")
    assert run(*command).out.splitlines()[2] == (
        "  layers     4 are not simulated: their time follows from that of equal ones, and they "
        "are not in the timeline"
    )
    whole = run(*command, "-o", str(tmp_path / "trace.et"), "--json")
    assert json.loads(whole.out)["step"]["layers_left_out"] == 0
