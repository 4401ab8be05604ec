"""Pipelines on four real processes: training, modules, and the memory of the program.

With HYPOTHESIS_PROFILE=ci also 20 steps on eight: pipeline x data x tensor, 2 x 2 x 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pipeline_ranks
import pytest
import training_cases
from distributed_ranks import on_ranks
from distributed_steps import BATCH, POSITIONS
from lowered_steps import shared_folder
from partitioned_cases import drawn_batch, drawn_parameters
from pipelined_plans import pipelined
from profiles import IS_LONG, long
from saved_tensors import arrays_of

from primepar.models import ModelConfig
from primepar.models.config import Family
from primepar.plan import Plan, preset_plan, save_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.run import simulate
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule.program import Program

RANKS = 4
CASES = [
    ("1f1b", "megatron", "gpt2", "2x4"), ("zbv", "data", "gpt2", "2x4"),
    *([("gpipe", "data", "llama", "2x2"), ("zb-h1", "megatron-sp", "bloom", "2x2")] * IS_LONG),
    ("interleaved-1f1b", "M2,data", "llama", "2x2"),
]  # fmt: skip
"""Schedule, plan of a stage, family, stages and micro-batches."""
SMALL: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "context": 16, "vocabulary": 256}
MODEL = ModelConfig.of(
    "gpt2", **SMALL, embedding_dropout=0.1, dropout=0.2, attention_dropout=0.1
)  # fmt: skip


def plan_of(schedule: str, within: str, family: str, sizes: str) -> Plan:
    plan = pipelined(schedule, within, RANKS, family, sizes)
    return preset_plan(f"{schedule}:{sizes},{within}", plan.model, RANKS, BATCH)


def trained() -> Plan:
    return preset_plan("1f1b:2x2,megatron", MODEL, RANKS, training_cases.BATCH)


def trained_alone(folder: Path, model: ModelConfig, batch: int, steps: int) -> Path:
    """Train on this process alone, and leave the log and a checkpoint of the last step."""
    folder.mkdir(exist_ok=True)
    file = folder / "plan.json"
    save_plan(preset_plan("data", model, 1, batch), file)
    changes = {"plan": str(file), "steps": steps, "checkpoint": str(folder / "saved")}
    assert training_cases.train(folder / "trained", **changes) == 0
    return folder


def alone_for_three_steps() -> Path:
    """What one process leaves of `MODEL`."""
    batch = training_cases.BATCH
    return shared_folder("alone", lambda folder: trained_alone(folder, MODEL, batch, 3))[0]


class Runs(NamedTuple):
    """A folder with what the processes left, and what each of them answered."""

    folder: Path
    answers: list[pipeline_ranks.Answers]


@pytest.fixture(scope="module")
def four() -> Runs:
    plans = [plan_of(*case) for case in CASES]

    def fill(folder: Path) -> list[pipeline_ranks.Answers]:
        return on_ranks(RANKS, pipeline_ranks.runs, folder, plans[0], plans[-1], trained())

    return Runs(*shared_folder("pipelines", fill))


@pytest.fixture(scope="module")
def one() -> Path:
    return alone_for_three_steps()


def test_emulator_simulator_and_executor_have_the_same_numbers(four: Runs) -> None:
    program = msgspec.json.decode(four.answers[0].program, type=Program)
    watched = [answers.watched for answers in four.answers]
    emulated = emulate(program, memories(program))
    simulated = simulate(program, load_cluster("h200-8"), "float32")
    assert [numbers.peak for numbers in watched] == emulated.peak
    assert emulated.peak == [bytes_held / 4 for bytes_held in simulated.peak]
    assert [numbers.sent for numbers in watched] == emulated.sent
    assert [numbers.instructions for numbers in watched] == list(map(len, program.programs))


def test_training_is_that_of_one_process(four: Runs, one: Path) -> None:
    assert [answers.trained for answers in four.answers] == [0] * RANKS
    expected = training_cases.losses(one / "trained")
    assert list(expected) == [1, 2, 3]
    assert training_cases.losses(four.folder / "trained") == pytest.approx(expected, rel=1e-9)
    assert_same_states(four.folder, one, 3)


def assert_same_states(folder: Path, other: Path, step: int) -> None:
    """Parameters and moments of two runs are equal up to rounding."""
    name = f"step-{step:08d}"
    got, right = (arrays_of(place / "saved" / name) for place in (folder, other))
    assert got.keys() == right.keys()
    for tensor, values in right.items():
        np.testing.assert_allclose(got[tensor], values, rtol=1e-7, atol=1e-9, err_msg=tensor)


@long
@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_pipeline_by_data_by_tensor_is_one_process(
    family: Family, schedule: str, tmp_path: Path
) -> None:
    steps, batch, sizes = 20, training_cases.BATCH, {**SMALL, "layers": 4}
    dropouts = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.1}
    llama = {"kv_heads": 2, "ffn": 64}
    model = ModelConfig.of(family, **sizes, **(dropouts if family == "gpt2" else llama))
    plan = preset_plan(f"{schedule}:2x2,M2,megatron", model, 8, batch)
    answers = on_ranks(8, pipeline_ranks.trained, tmp_path, plan, steps)
    assert answers == [0] * 8
    one = trained_alone(tmp_path / "one", model, batch, steps)
    expected = training_cases.losses(one / "trained")
    assert list(expected) == list(range(1, steps + 1))
    assert training_cases.losses(tmp_path / "trained") == pytest.approx(expected, rel=1e-9)
    assert_same_states(tmp_path, one, steps)


def test_a_run_goes_on_from_its_checkpoint(four: Runs) -> None:
    assert [answers.resumed for answers in four.answers] == [0] * RANKS
    straight = training_cases.losses(four.folder / "trained")
    assert training_cases.losses(four.folder / "resumed")[3] == straight[3]


def test_a_checkpoint_of_a_pipeline_loads_without_one(four: Runs, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    save_plan(preset_plan("data", MODEL, 1, training_cases.BATCH), file)
    training_cases.keep(four.folder / "saved", tmp_path / "half", 2)
    changes = {"plan": str(file), "steps": 3, "resume": True, "checkpoint": str(tmp_path / "half")}
    assert training_cases.train(tmp_path / "alone", **changes) == 0
    expected = training_cases.losses(four.folder / "trained")[3]
    assert training_cases.losses(tmp_path / "alone")[3] == pytest.approx(expected, rel=1e-9)


def test_a_module_has_the_parameters_of_its_stage_and_gathers_all(four: Runs) -> None:
    plan = plan_of(*CASES[-1])
    parameters = drawn_parameters(plan.model)
    tokens, targets = drawn_batch(plan.model, BATCH, POSITIONS)
    dense = Transformer(plan.model, parameters)
    loss, gradients = dense.loss_and_gradients(tokens, targets)
    first, *_, last = (answers.module for answers in four.answers)
    assert [answers.module["loss"] for answers in four.answers] == pytest.approx([loss] * RANKS)
    np.testing.assert_allclose(first["logits"], dense.logits(tokens), rtol=1e-9)
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(first["parameters"][name], parameters[name])
        np.testing.assert_allclose(first["gradients"][name], gradient, rtol=1e-9, atol=1e-12)
    assert set(first["held"]) & set(last["held"]) == set()
    assert {*first["held"], *last["held"]} == set(parameters)
    assert last["logits"] is None
