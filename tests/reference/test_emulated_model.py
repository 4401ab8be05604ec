"""A whole model partitioned by any plan on emulated devices, compared with one device."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from partitioned_cases import (
    DRAW,
    PRESET_MESHES,
    SHAPES,
    difference,
    drawn_batch,
    drawn_parameters,
    plan_apart,
    planned_steps,
    step,
)
from profiles import IS_LONG, few, long
from step_cases import SMALL

from primepar.errors import ConfigError, PlanError
from primepar.models import GPTConfig, operators
from primepar.operators import StepSettings, lower_step
from primepar.partition import parse_sequence
from primepar.plan import Plan, ends, preset_plan
from primepar.reference import emulate
from primepar.reference.emulator.model import EmulatedModel
from primepar.reference.emulator.tensors import gather_tensors, spread_tensors
from primepar.reference.kernels import StepKernels
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule.meaning import Meaning

RANDOM_PLANS = 100 if IS_LONG else 3


@few
@pytest.mark.parametrize(("mesh", "family"), list(product(PRESET_MESHES, SHAPES)))
def test_under_a_preset_loss_and_gradients_are_those_of_one_device(
    mesh: tuple[str, int], family: str
) -> None:
    name, ranks = mesh
    assert difference(preset_plan(name, SMALL[family], ranks), 8, 4) < 1e-10


@few
@pytest.mark.parametrize(
    ("family", "ranks"),
    [*product(SHAPES, [4, 8]), pytest.param("gpt2", 16, marks=long)],
)
def test_linear_operators_that_leave_blocks_apart_give_what_one_device_gives(
    family: str, ranks: int
) -> None:
    plan = plan_apart(SHAPES[family], ranks)
    assert any(
        len(blocks) > 1
        for operator in plan.operators
        for layout in (ends(plan, operator.name).input, ends(plan, operator.name).output)
        for blocks in layout.held
    )
    assert difference(plan, plan.row_cuts.smallest_batch(4), 4) < 1e-10


@few
@pytest.mark.parametrize("text", ["", "M2", "N2", "K2", "P1x1", "P3x3", "K2,P2x2", "M2,P2x2"])
def test_linear_operators_of_any_sequence_give_what_one_device_gives(text: str) -> None:
    model = GPTConfig(layers=2, hidden=12, heads=2, context=6, vocabulary=24)
    ranks = parse_sequence(text).ranks
    sequences = {
        operator.name: text if operator.kind == "linear" else f"R{ranks}" * (ranks > 1)
        for operator in operators(model)
    }
    assert difference(Plan(model=model, ranks=ranks, sequences=sequences), 2, 6) < 1e-12


@settings(max_examples=RANDOM_PLANS, suppress_health_check=list(HealthCheck))
@given(planned_steps())
def test_under_any_plan_loss_and_gradients_are_those_of_one_device(
    planned: tuple[Plan, int, int],
) -> None:
    assert difference(*planned) < 1e-10


def test_a_plan_on_one_device_sends_nothing() -> None:
    plan = preset_plan("data", SHAPES["bloom"], 1)
    assert difference(plan, 2, 4) < 1e-12
    assert step(plan, 2, 4).sent == [0]


def test_data_parallel_devices_send_every_gradient_and_the_loss_once_around_the_ring() -> None:
    model = replace(SHAPES["opt"], tied=False, vocabulary=24)
    plan = preset_plan("data", model, 4)
    assert step(plan, 8, 4).sent == [Fraction(2 * 3, 4) * (model.parameters + 1)] * 4


def test_megatron_sums_two_activations_a_layer_forward_and_two_backward() -> None:
    model = replace(SHAPES["llama"], vocabulary=24)
    plan = preset_plan("megatron", model, 4)
    stream = 4 * 4 * model.hidden  # elements of an activation: 4 sequences of 4 tokens
    embedding, head, loss = stream, stream, 3 * 4 * 4  # three numbers of every row for the loss
    reduced = 4 * model.layers * stream + embedding + head + loss
    assert step(plan, 4, 4).sent == [Fraction(2 * 3, 4) * reduced] * 4


@few
@pytest.mark.parametrize("name", ["megatron", "summa"])
@pytest.mark.parametrize("tied", [True, False])
def test_padding_of_the_vocabulary_gets_no_probability(name: str, tied: bool) -> None:
    config = replace(SHAPES["gpt2"], tied=tied)
    meaning = Meaning(lower_step(preset_plan(name, config, 4), 4, 4, "gradients"))
    tokens, targets = (batch.reshape(-1) for batch in drawn_batch(config, 4, 4))
    parameters = {**drawn_parameters(config), "tokens": tokens, "targets": targets}
    padded, dim = ("embedding.token", 0) if tied else ("head.weight", 1)
    size = (meaning.program.tensors or {})[padded].cuts[dim][-1]
    assert size > config.vocabulary
    ends = {f"{parameter}.grad": shape for parameter, shape in config.parameter_shapes.items()}
    results = []
    for filling in (0.0, 50.0):
        width = [(0, 0), (0, 0)]
        width[dim] = 0, size - config.vocabulary
        changed = {padded: np.pad(parameters[padded], width, constant_values=filling)}
        memories = spread_tensors(meaning, parameters | changed)
        run = emulate(meaning.program, memories, kernels=StepKernels(StepSettings(config, 4, 4)))
        results.append(gather_tensors(meaning, run.memories, {"loss": (1,), **ends}))
    for tensor, array in results[0].items():
        assert np.array_equal(results[1][tensor], array), tensor


@few
@pytest.mark.parametrize(
    ("family", "name"), list(product(SHAPES, ["megatron", "summa", "primepar", "stationary"]))
)
def test_a_program_without_backward_has_the_logits_and_the_loss_of_one_device(
    family: str, name: str
) -> None:
    config = SMALL[family]
    parameters, (tokens, targets) = drawn_parameters(config), drawn_batch(config, 8, 4)
    model = EmulatedModel(config, preset_plan(name, config, 4), parameters)
    one = Transformer(config, parameters)
    expected = one.logits(tokens)
    assert np.abs(model.logits(tokens) - expected).max() / np.abs(expected).max() < 1e-12
    for draw in (None, DRAW):
        expected_loss = one.loss(tokens, targets, draw)
        assert model.loss(tokens, targets, draw) == pytest.approx(expected_loss, rel=1e-12)


def test_a_float32_model_stays_there_on_emulated_devices() -> None:
    config = SHAPES["llama"]
    parameters = {
        name: array.astype(np.float32) for name, array in drawn_parameters(config).items()
    }
    model = EmulatedModel(config, preset_plan("stationary", config, 4), parameters)
    step = model.loss_and_gradients(*drawn_batch(config, 4, 4))
    assert {gradient.dtype for gradient in step.gradients.values()} == {np.dtype(np.float32)}
    expected = Transformer(config, parameters).loss(*drawn_batch(config, 4, 4))
    assert step.loss == pytest.approx(expected, rel=1e-5)
    model.update(*drawn_batch(config, 4, 4), 0.01, DRAW, clip=0.1)
    left = {**model.parameters, **model.moments}
    assert {array.dtype for array in left.values()} == {np.dtype(np.float32)}


def test_a_plan_for_another_model_is_refused() -> None:
    plan = preset_plan("summa", SHAPES["opt"], 4)
    other = replace(SHAPES["opt"], layers=1)
    with pytest.raises(PlanError) as error:
        EmulatedModel(other, plan, drawn_parameters(other))
    assert str(error.value) == (
        "plan: expected a model with layers=2, as it was made for, got layers=1: "
        "take that model, or make a plan for this one"
    )


def test_a_batch_that_a_plan_does_not_divide_is_refused() -> None:
    plan = preset_plan("data", SHAPES["opt"], 4)
    with pytest.raises(PlanError) as error:
        step(plan, 6, 4)
    assert str(error.value) == (
        "batch: expected a multiple or a divisor of the 4 slices of the rows in "
        "blocks.0.attention, got 6: take 8"
    )


def test_tokens_out_of_the_vocabulary_are_refused_even_where_it_is_padded() -> None:
    config = SHAPES["opt"]
    model = EmulatedModel(config, preset_plan("megatron", config, 4), drawn_parameters(config))
    tokens, targets = drawn_batch(config, 4, 4)
    tokens[2, 1] = 22
    with pytest.raises(ConfigError) as error:
        model.loss_and_gradients(tokens, targets)
    expected = "tokens: expected tokens from 0 to 20 (vocabulary=21), got 22 at [2, 1]"
    assert str(error.value) == expected


def test_a_missing_parameter_is_refused() -> None:
    config = SHAPES["opt"]
    parameters = drawn_parameters(config)
    del parameters["norm.bias"]
    with pytest.raises(ConfigError) as error:
        EmulatedModel(config, preset_plan("megatron", config, 4), parameters)
    assert str(error.value) == "norm.bias: expected shape (16,), got no such parameter"
