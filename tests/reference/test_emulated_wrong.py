"""Kernels and programs of a step that do not fit: one line each, which names the phase."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from partitioned_cases import SHAPES, drawn_batch, drawn_parameters
from step_cases import SMALL

from primepar.errors import (
    IncompleteError,
    MissingBlockError,
    PrimeParError,
    ProgramError,
    WrongDataError,
)
from primepar.models import ModelConfig
from primepar.operators import StepSettings, lower_step
from primepar.plan import preset_plan
from primepar.reference import emulate
from primepar.reference.emulator.tensors import gather_tensors, spread_tensors
from primepar.reference.kernels import KERNELS, StepKernels
from primepar.reference.oracle.layers import Array
from primepar.schedule import Program
from primepar.schedule.meaning import Meaning

MODEL = SMALL["gpt2"]
PROGRAM = lower_step(preset_plan("megatron", MODEL, 4), 8, 4, "loss")


def run(program: Program, model: ModelConfig, settings: ModelConfig) -> None:
    """Emulate the program of a model with the settings of one."""
    tokens, targets = drawn_batch(model, 8, 4)
    rows = {"tokens": tokens.reshape(-1), "targets": targets.reshape(-1)}
    memories = spread_tensors(Meaning(program), {**drawn_parameters(model), **rows})
    emulate(program, memories, kernels=StepKernels(StepSettings(settings, 8, 4)))


def message(
    program: Program,
    model: ModelConfig = MODEL,
    settings: ModelConfig = MODEL,
    kind: type[PrimeParError] = ProgramError,
) -> str:
    """The one line with which a run ends."""
    with pytest.raises(kind) as error:
        run(program, model, settings)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kernel", [None, "activation.forwards"])
def test_a_phase_without_a_kernel_is_named(kernel: str | None) -> None:
    phases = dict(PROGRAM.phases or {})
    name = "blocks.0.act.forward"
    phases[name] = msgspec.structs.replace(phases[name], kernel=kernel)
    program = msgspec.structs.replace(PROGRAM, phases=phases)
    text = message(program)
    assert text.startswith(f"phase {name}: expected a kernel out of linear.forward, ")
    assert text.endswith(
        f", got {kernel or 'none'}: name one in its signature, or leave out the kernels for "
        "stand-ins"
    )


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda block: block[:-1], "float64 of shape (31, 16)"),
        (lambda block: block[None], "float64 of shape (1, 32, 16)"),
        (lambda block: np.rint(block).astype(np.int64), "int64 of shape (32, 16)"),
        (lambda block: block > 0, "bool of shape (32, 16)"),
    ],
)
def test_a_kernel_that_returns_another_block_is_refused(
    change: Callable[[Array], Array], got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, kernel = "activation.forward", KERNELS["activation.forward"]
    monkeypatch.setitem(KERNELS, name, lambda *arguments: change(kernel(*arguments)))
    place, _, text = message(PROGRAM, kind=WrongDataError).partition(", blocks.0.act.forward: ")
    assert place.startswith("device ")
    assert text == (
        f"expected a real block of shape (32, 16) from kernel {name}, got {got}: see that the "
        "program is of this model, batch and positions"
    )


def test_settings_of_another_model_are_refused() -> None:
    two = lower_step(preset_plan("megatron", SHAPES["gpt2"], 4), 8, 4, "loss")
    assert message(two, SHAPES["gpt2"], MODEL) == (
        "phase blocks.1.add1.forward: expected an operator of the model, got blocks.1.add1: "
        "run the program with the settings of the model that its plan is for"
    )


def test_a_whole_tensor_that_is_not_given_is_named() -> None:
    parameters = drawn_parameters(MODEL)
    del parameters["norm.bias"]
    with pytest.raises(MissingBlockError) as error:
        spread_tensors(Meaning(PROGRAM), parameters)
    assert str(error.value) == "expected the whole tensor of tokens[0], got none of that name"


def test_replicas_that_differ_and_parts_on_no_rank_are_refused() -> None:
    meaning = Meaning(PROGRAM)
    one, other = np.zeros(16), np.arange(16.0)
    with pytest.raises(WrongDataError) as differs:
        gather_tensors(
            meaning, [{"norm.bias[0]": one}, {"norm.bias[0]": other}], {"norm.bias": (16,)}
        )
    assert str(differs.value) == (
        "expected equal replicas of norm.bias[0], got another on device 1"
    )
    first = {"blocks.0.qkv.bias[0]": np.zeros(12)}
    with pytest.raises(IncompleteError) as lacks:
        gather_tensors(meaning, [first], {"blocks.0.qkv.bias": (48,)})
    assert str(lacks.value) == (
        "expected all of blocks.0.qkv.bias at the end, got a part on no rank"
    )
