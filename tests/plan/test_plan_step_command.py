"""Steps of plans on the command line: `primepar verify PLAN` and `primepar show PLAN --program`."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from command import run
from lowered_steps import lower_step
from step_cases import SMALL, place, spoilt

from primepar.api.target import TrainingStep
from primepar.passes import PASSES
from primepar.plan import preset_plan, save_plan
from primepar.reference.kernels import KERNELS
from primepar.schedule import load_program, program_text
from primepar.schedule.program import Instruction

CONFIG = {
    "model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 4, "n_positions": 4,
    "vocab_size": 21, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
PROPERTIES = [
    "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races",
]  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def plan(tmp_path: Path) -> str:
    save_plan(preset_plan("summa", SMALL["opt"], 4), tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


def test_verify_proves_the_step_of_a_plan_and_prints_its_sizes(plan: str) -> None:
    done = run("verify", plan)
    assert (done.code, done.err) == (0, "")
    first, *rest = done.out.splitlines()
    assert first == f"{plan}: proved for a step of 1 sequence of 4 tokens"
    assert [line.split()[:2] for line in rest] == [[name, "proved"] for name in PROPERTIES]


def test_check_runs_the_step_by_stand_ins_and_on_real_numbers(plan: str) -> None:
    done = run("check", plan, "--batch", "2")
    assert (done.code, done.err) == (0, "")
    *_, stand_ins, real = done.out.splitlines()
    assert stand_ins.startswith("  by surrogates of what the phases compute: ")
    assert real == (
        "  by kernels on real numbers: loss and gradients within 1e-10 of the dense ones"
    )
    report = json.loads(run("check", plan, "--json").out)
    assert report["equal"]
    assert 0 < report["difference"] < 1e-13


def test_check_ends_with_1_where_the_step_is_not_that_of_the_dense_transformer(plan: str) -> None:
    kernel = KERNELS["norm.gradient"]
    with patch.dict(KERNELS, {"norm.gradient": lambda *of: kernel(*of) * (1 + 1e-9)}):
        done = run("check", plan)
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines()[-1].endswith(
        ".grad within 1e-10 of the dense transformer's, got 1.0e-09 off"
    )


def test_verify_takes_other_sizes_and_prints_json(plan: str) -> None:
    done = run("verify", plan, "--batch", "4", "--positions", "1", "--json")
    report = json.loads(done.out)
    assert list(report) == ["target", "step", "verdict", "properties"]
    assert (report["verdict"], report["step"]) == ("proved", {"batch": 4, "positions": 1})
    assert [entry["name"] for entry in report["properties"]] == PROPERTIES


def test_verify_proves_a_preset_with_a_model(config: str) -> None:
    done = run("verify", "M2,megatron", "--model", config, "--devices", "4", "--batch", "2")
    assert (done.code, done.err) == (0, "")
    title = "M2,megatron: proved for a step of 2 sequences of 4 tokens"
    assert done.out.splitlines()[0] == title


def test_a_batch_of_the_plan_is_the_one_that_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(preset_plan("data", SMALL["llama"], 2, batch=6), path)
    title = f"{path}: proved for a step of 6 sequences of 1 token"
    assert run("verify", str(path), "--positions", "1").out.splitlines()[0] == title
    assert run("verify", str(path), "--batch", "2").err == (
        "primepar: error: batch: expected 6, as the plan states, got 2: take that, or a plan for "
        "this one\n"
    )


def test_show_writes_the_program_of_a_step(plan: str, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    done = run("show", plan, "--program", "-o", str(path))
    assert done == (0, f"wrote {path}: a step of 1 sequence of 4 tokens\n", "")
    program = lower_step(preset_plan("summa", SMALL["opt"], 4), 1, 4)
    assert load_program(path) == program
    assert run("verify", str(path)).code == 0
    assert run("show", plan, "--program").out == program_text(program)
    assert run("show", plan, "--program", "--json").out == path.read_text()


def test_show_makes_the_program_of_a_preset(config: str) -> None:
    options = ("--model", config, "--devices", "2", "--positions", "2", "--json")
    done = json.loads(run("show", "data", *options, "--program").out)
    assert done["tensors"]["tokens"] == {"cuts": [[0, 1, 2]]}


def test_what_is_refuted_is_replayed_by_the_commands_that_it_prints(plan: str) -> None:
    def spoil(rank: int, instructions: list[Instruction]) -> None:
        del instructions[place(instructions, "all_reduce loss[0] norm")]

    wrong = spoilt(lower_step(preset_plan("summa", SMALL["opt"], 4), 1, 4), spoil)
    with patch.object(TrainingStep, "program", wrong):
        done = run("verify", plan, "--positions", "4")
    assert done.code == 1
    assert done.out.splitlines()[0] == f"{plan}: refuted"
    assert done.out.splitlines()[-1] == (
        f"  replay: primepar show {plan} --positions 4 --program -o step.json && "
        "primepar check step.json"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "PLAN", "--side", "2"), "PLAN: expected no --side, as a plan has its own "
         "sequences, got --side 2: leave it out"),
        (("verify", "PLAN", "--batch", "3"), "batch: expected a multiple or a divisor of the 2 "
         "slices of the rows in blocks.0.attention, got 3: take 4"),
        (("verify", "PLAN", "--positions", "5"), "positions: expected 1 to context=4, got 5: cut "
         "the sequences"),
        (("verify", "megatron", "--model", "CONFIG"), "megatron: expected the model and the "
         "devices of a preset, got no --devices: write --devices 8"),
        (("verify", "K,P2x2", "--positions", "2"), "K,P2x2: expected no --positions, which the "
         "step of a plan has, got --positions 2: leave it out"),
        (("verify", "K,P2x2", "--batch", "2"), "K,P2x2: expected no --batch, which the step of a "
         "plan has, got --batch 2: leave it out"),
        (("show", "PLAN", "--batch", "2"), "PLAN: expected no --batch, which the step of a plan "
         "has, got --batch 2: leave it out, or write --program"),
        (("show", "PLAN", "--positions", "2"), "PLAN: expected no --positions, which the step of "
         "a plan has, got --positions 2: leave it out, or write --program"),
        (("show", "PLAN", "--program", "-o", "step.svg"), "--output: expected a name that ends "
         "with .json (the program), got step.svg"),
    ],
)  # fmt: skip
def test_options_of_a_step_without_a_step_are_refused(
    plan: str, config: str, arguments: tuple[str, ...], message: str
) -> None:
    places = {"PLAN": plan, "CONFIG": config}
    done = run(*(places.get(word, word) for word in arguments))
    shown = message.replace("PLAN", plan)
    assert (done.code, done.out, done.err) == (2, "", f"primepar: error: {shown}\n")


# Passes


def test_what_each_pass_changed_is_listed(config: str) -> None:
    given = ("show", "megatron-sp", "--model", config, "--devices", "4", "--batch", "8", "--passes")
    listed = json.loads(run(*given, "--json").out)
    assert [entry["name"] for entry in listed] == ["lowered", *PASSES]
    computes = [entry["instructions"]["compute"] for entry in listed]
    assert computes[0] == computes[1] > computes[2] == computes[4]
    assert len({tuple(entry["sent"]) for entry in listed}) == 1
    assert max(listed[0]["peak"]) > max(listed[1]["peak"]) >= max(listed[4]["peak"])
    lines = run(*given).out.splitlines()
    assert lines[1].split() == ["lowered", *PASSES]
    row = next(line.split() for line in lines if line.startswith("compute "))
    assert row[1:] == [f"{count:,}" for count in computes]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("summa",), "summa: expected a plan with --passes, as they are of the program of a "
         "training step, got no plan: name one, such as megatron-sp with --model and --devices"),
        (("PLAN", "--program"), "data: expected --passes alone, which prints a table, or with "
         "--json, got --program: leave it out"),
        (("PLAN", "-o", "x.json"), "data: expected --passes alone, which prints a table, or with "
         "--json, got --output x.json: leave it out"),
    ],
)  # fmt: skip
def test_passes_of_something_else_are_refused(
    config: str, given: tuple[str, ...], message: str
) -> None:
    plan = ("data", "--model", config, "--devices", "2")
    words = [part for word in given for part in (plan if word == "PLAN" else (word,))]
    done = run("show", *words, "--passes")
    assert (done.code, done.err) == (2, f"primepar: error: {message}\n")
