"""The model that every path builds: its sizes and its parameters before training."""

from __future__ import annotations

import numpy as np
import pytest

from primepar.errors import ConfigError
from primepar.models import GPTConfig, initial_parameter

CONFIG = GPTConfig(layers=2, hidden=8, heads=2, context=5, vocabulary=11)


@pytest.mark.parametrize("name", ["layers", "hidden", "heads", "context", "vocabulary"])
def test_a_size_below_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        GPTConfig(**{name: 0})
    assert str(error.value) == f"{name}: expected 1 or more, got 0"


def test_heads_that_do_not_divide_the_hidden_size_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        GPTConfig(hidden=10, heads=4)
    assert str(error.value) == "heads: expected a divisor of hidden=10, got 4"


def test_linear_operators_come_in_the_order_of_execution() -> None:
    assert CONFIG.linear_shapes == {
        "blocks.0.qkv": (8, 24),
        "blocks.0.proj": (8, 8),
        "blocks.0.fc1": (8, 32),
        "blocks.0.fc2": (32, 8),
        "blocks.1.qkv": (8, 24),
        "blocks.1.proj": (8, 8),
        "blocks.1.fc1": (8, 32),
        "blocks.1.fc2": (32, 8),
        "head": (8, 11),
    }
    assert list(CONFIG.linear_shapes)[3:5] == ["blocks.0.fc2", "blocks.1.qkv"]


def test_the_parameters_are_counted() -> None:
    tables, norms, blocks, head = (11 + 5) * 8, 5 * 2 * 8, 2 * 12 * 8 * 8, 8 * 11
    assert CONFIG.parameters == tables + norms + blocks + head


def test_norms_start_at_one_and_biases_at_zero() -> None:
    for name in CONFIG.parameter_shapes:
        value = initial_parameter(CONFIG, name, seed=0)
        assert value.shape == CONFIG.parameter_shapes[name]
        if name.endswith("bias"):
            assert not value.any()
        elif "norm" in name:
            assert (value == 1).all()
        else:
            assert 0.5 * value.std() < np.abs(value).mean() < value.std()


def test_a_parameter_is_the_same_for_one_seed_and_another_for_the_next() -> None:
    first, again = (initial_parameter(CONFIG, "head.weight", seed=3) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, initial_parameter(CONFIG, "head.weight", seed=4))


def test_two_parameters_of_one_shape_start_apart() -> None:
    first, second = (initial_parameter(CONFIG, f"blocks.{n}.qkv.weight", seed=0) for n in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", ["blocks.0.proj.weight", "blocks.0.fc2.weight"])
def test_the_end_of_a_residual_branch_starts_smaller_in_a_deeper_model(name: str) -> None:
    one, four = (GPTConfig(layers=n, hidden=8, heads=2) for n in (1, 4))
    shallow, deep = (initial_parameter(config, name, seed=0) for config in (one, four))
    assert np.array_equal(shallow, 2 * deep)


def test_other_weights_start_alike_in_a_deeper_model() -> None:
    one, four = (GPTConfig(layers=n, hidden=8, heads=2) for n in (1, 4))
    shallow, deep = (initial_parameter(c, "blocks.0.qkv.weight", seed=0) for c in (one, four))
    assert np.array_equal(shallow, deep)
    assert 0.015 < shallow.std() < 0.025
