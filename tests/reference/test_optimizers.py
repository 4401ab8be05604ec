"""SGD and AdamW: by hand, and step by step compared with torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from primepar.errors import ConfigError
from primepar.models import GPTConfig
from primepar.reference.oracle.layers import Array
from primepar.reference.oracle.train import SGD, AdamW, Optimizer, linear_weights

SHAPES = {"decayed": (3, 4), "kept": (5,)}


def drawn(seed: int) -> dict[str, Array]:
    """Return one random array for each name."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def worst_difference(optimizer: Optimizer, torch: Any, other: Any, leaves: dict[str, Any]) -> float:
    """Return the largest relative difference of any parameter over 7 steps of both."""
    parameters: dict[str, Array] = {name: leaf.detach().numpy() for name, leaf in leaves.items()}
    parameters = {name: parameter.copy() for name, parameter in parameters.items()}
    worst = 0.0
    for step in range(7):
        gradients = drawn(step)
        parameters = optimizer.step(parameters, gradients)
        for name, leaf in leaves.items():
            leaf.grad = torch.tensor(gradients[name])
        other.step()
        for name, leaf in leaves.items():
            expected = leaf.detach().numpy()
            worst = max(worst, float(np.abs(parameters[name] / expected - 1).max()))
    return worst


def torch_leaves(torch: Any) -> dict[str, Any]:
    """Return random parameters for torch."""
    return {name: torch.tensor(array, requires_grad=True) for name, array in drawn(100).items()}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_agrees_with_torch(momentum: float) -> None:
    torch = pytest.importorskip("torch")
    leaves = torch_leaves(torch)
    other = torch.optim.SGD(leaves.values(), lr=0.03, momentum=momentum)
    assert worst_difference(SGD(0.03, momentum), torch, other, leaves) < 1e-12


def torch_adamw(torch: Any, leaves: dict[str, Any]) -> Any:
    """Return torch's AdamW with decay on one of the two parameters."""
    groups = [
        {"params": [leaves["decayed"]], "weight_decay": 0.1},
        {"params": [leaves["kept"]], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.03, betas=(0.9, 0.95), eps=1e-8)


def test_adamw_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    leaves = torch_leaves(torch)
    optimizer = AdamW(0.03, weight_decay=0.1, decayed={"decayed"})
    assert worst_difference(optimizer, torch, torch_adamw(torch, leaves), leaves) < 1e-12


def test_adamw_with_the_decay_on_other_parameters_is_seen() -> None:
    torch = pytest.importorskip("torch")
    leaves = torch_leaves(torch)
    optimizer = AdamW(0.03, weight_decay=0.1, decayed={"kept"})
    assert worst_difference(optimizer, torch, torch_adamw(torch, leaves), leaves) > 1e-3


def test_sgd_goes_down_the_gradient() -> None:
    after = SGD(0.5).step({"x": np.array([1.0, 2.0])}, {"x": np.array([2.0, -4.0])})
    assert after["x"].tolist() == [0.0, 4.0]


def test_sgd_with_momentum_keeps_half_of_the_last_step() -> None:
    optimizer = SGD(1.0, momentum=0.5)
    parameters: dict[str, Array] = {"x": np.array([8.0])}
    parameters = optimizer.step(parameters, {"x": np.array([4.0])})
    assert parameters["x"].tolist() == [4.0]
    parameters = optimizer.step(parameters, {"x": np.array([0.0])})
    assert parameters["x"].tolist() == [2.0]


def test_the_first_step_of_adamw_is_the_learning_rate_whatever_the_gradient() -> None:
    parameters = {"x": np.array([1.0, 1.0])}
    after = AdamW(0.25).step(parameters, {"x": np.array([1000.0, -0.5])})
    assert after["x"] == pytest.approx([0.75, 1.25], rel=1e-7)


def test_only_named_parameters_decay() -> None:
    parameters = {"x": np.array([8.0]), "y": np.array([8.0])}
    gradients = {"x": np.zeros(1), "y": np.zeros(1)}
    after = AdamW(0.5, weight_decay=0.5, decayed={"x"}).step(parameters, gradients)
    assert {name: array.tolist() for name, array in after.items()} == {"x": [6.0], "y": [8.0]}


@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), AdamW(0.1, weight_decay=0.1, decayed="x")])
def test_a_step_keeps_float32_and_leaves_the_old_parameters(optimizer: Optimizer) -> None:
    parameters = {"x": np.ones(3, dtype=np.float32)}
    for _ in range(2):
        after = optimizer.step(parameters, {"x": np.ones(3, dtype=np.float32)})
    assert after["x"].dtype == np.float32
    assert parameters["x"].tolist() == [1.0, 1.0, 1.0]


def test_decay_is_for_the_weights_of_linear_operators() -> None:
    assert linear_weights(GPTConfig(layers=1)) == {
        "blocks.0.qkv.weight",
        "blocks.0.proj.weight",
        "blocks.0.fc1.weight",
        "blocks.0.fc2.weight",
        "head.weight",
    }


SETTINGS = [
    ({"learning_rate": 0.0}, "learning_rate: expected a number above 0, got 0.0"),
    ({"learning_rate": float("nan")}, "learning_rate: expected a number above 0, got nan"),
    ({"betas": (0.9, 1.0)}, "betas: expected 0 or more and less than 1, got 1.0"),
    ({"epsilon": 0.0}, "epsilon: expected a number above 0, got 0.0"),
    ({"weight_decay": -0.1}, "weight_decay: expected 0 or more, got -0.1"),
]


@pytest.mark.parametrize(("settings", "message"), SETTINGS)
def test_adamw_refuses_a_setting_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        AdamW(**{"learning_rate": 0.1, **settings})
    assert str(error.value) == message


def test_sgd_refuses_a_setting_out_of_range() -> None:
    with pytest.raises(ConfigError) as error:
        SGD(-1.0)
    assert str(error.value) == "learning_rate: expected a number above 0, got -1.0"
    with pytest.raises(ConfigError) as error:
        SGD(1.0, momentum=1.5)
    assert str(error.value) == "momentum: expected 0 or more and less than 1, got 1.5"
