"""SGD and AdamW, step by step compared with torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from primepar.models import GPTConfig
from primepar.reference.oracle.layers import Array
from primepar.reference.oracle.train import SGD, AdamW, linear_weights

SHAPES = {"decayed": (3, 4), "kept": (5,)}


def drawn(seed: int) -> dict[str, Array]:
    """Return one random array for each name."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) for name, shape in SHAPES.items()}


def worst_difference(
    optimizer: SGD | AdamW, torch: Any, other: Any, leaves: dict[str, Any]
) -> float:
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


def test_sgd_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    leaves = torch_leaves(torch)
    other = torch.optim.SGD(leaves.values(), lr=0.03)
    assert worst_difference(SGD(0.03), torch, other, leaves) < 1e-12


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


@pytest.mark.parametrize("optimizer", [SGD(0.1), AdamW(0.1, weight_decay=0.1, decayed="x")])
def test_a_step_keeps_float32_and_leaves_the_old_parameters(
    optimizer: SGD | AdamW,
) -> None:
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
