"""Training of the NumPy transformer: SGD, AdamW, and a loop over windows of a text.

Optimizers have the formulas of torch.optim.SGD and torch.optim.AdamW. They return new parameters
and do not change the old ones. Settings are Python floats, so that float32 parameters stay in
float32.

Legend: B batch, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from primepar.errors import ConfigError, DataError
from primepar.models import ModelConfig
from primepar.reference.oracle.layers import Array, Tokens
from primepar.reference.oracle.transformer import Parameters, Transformer


class Optimizer(Protocol):
    """The interface of an optimizer for a training loop."""

    def step(self, parameters: Parameters, gradients: Parameters) -> dict[str, Array]:
        """Return the parameters after one update."""
        ...


def linear_weights(config: ModelConfig) -> frozenset[str]:
    """Return the names of the parameters with weight decay: the weights of linear operators."""
    return frozenset(f"{name}.weight" for name in config.linear_shapes)


@dataclass
class SGD:
    """Stochastic gradient descent with momentum, as torch.optim.SGD without dampening.

    Raises `ConfigError` for a setting out of range.
    """

    learning_rate: float
    momentum: float = 0.0
    _velocity: dict[str, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)
        _check_share("momentum", self.momentum)

    def step(self, parameters: Parameters, gradients: Parameters) -> dict[str, Array]:
        """Return the parameters after one update."""
        return {
            name: self._updated(name, parameter, gradients[name])
            for name, parameter in parameters.items()
        }

    def _updated(self, name: str, parameter: Array, gradient: Array) -> Array:
        before = self._velocity.get(name, np.zeros_like(parameter))
        self._velocity[name] = self.momentum * before + gradient
        return parameter - self.learning_rate * self._velocity[name]


@dataclass
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2).

    `decayed` names the parameters that decay; `linear_weights` gives them for a model. Raises
    `ConfigError` for a setting out of range.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decayed: Collection[str] = frozenset()
    steps: int = field(default=0, init=False)
    _first: dict[str, Array] = field(default_factory=dict, init=False, repr=False)
    _second: dict[str, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)
        for beta in self.betas:
            _check_share("betas", beta)
        _check_positive("epsilon", self.epsilon)
        if not self.weight_decay >= 0:
            raise ConfigError(f"weight_decay: expected 0 or more, got {self.weight_decay}")

    def step(self, parameters: Parameters, gradients: Parameters) -> dict[str, Array]:
        """Return the parameters after one update."""
        self.steps += 1
        return {
            name: self._updated(name, parameter, gradients[name])
            for name, parameter in parameters.items()
        }

    def _updated(self, name: str, parameter: Array, gradient: Array) -> Array:
        beta1, beta2 = self.betas
        nothing = np.zeros_like(parameter)
        first = beta1 * self._first.get(name, nothing) + (1 - beta1) * gradient
        second = beta2 * self._second.get(name, nothing) + (1 - beta2) * gradient**2
        self._first[name], self._second[name] = first, second
        decay = self.weight_decay if name in self.decayed else 0.0
        deviation = np.sqrt(second) / math.sqrt(1 - beta2**self.steps) + self.epsilon
        step_size = self.learning_rate / (1 - beta1**self.steps)
        return parameter * (1 - self.learning_rate * decay) - step_size * first / deviation


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{name}: expected a number above 0, got {value}")


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{name}: expected 0 or more and less than 1, got {value}")


def windows(
    text: bytes, batch: int, context: int, seed: int = 0
) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield without end (tokens_BT, targets_BT): windows of `text`, as bytes, at random positions.

    Targets are the tokens one position later. Raises `ConfigError` for a batch without windows and
    `DataError` if the text is shorter than one window plus one byte.
    """
    if batch < 1:
        raise ConfigError(f"batch: expected 1 or more, got {batch}")
    if len(text) <= context:
        raise DataError(
            f"text: expected at least {context + 1} bytes (context={context} and one more), "
            f"got {len(text)}"
        )
    return _windows(np.frombuffer(text, dtype=np.uint8).astype(np.int64), batch, context, seed)


def _windows(
    tokens: Tokens, batch: int, context: int, seed: int
) -> Iterator[tuple[Tokens, Tokens]]:
    generator = np.random.default_rng(seed)
    while True:
        starts_B1 = generator.integers(0, len(tokens) - context, (batch, 1))
        places_BT = starts_B1 + np.arange(context)
        yield tokens[places_BT], tokens[places_BT + 1]


def train(
    model: Transformer, optimizer: Optimizer, batches: Iterable[tuple[Tokens, Tokens]]
) -> list[float]:
    """Update the model once per batch; return the loss of each batch before its update, in nats."""
    losses = []
    for tokens_BT, targets_BT in batches:
        loss, gradients = model.loss_and_gradients(tokens_BT, targets_BT)
        model.parameters = optimizer.step(model.parameters, gradients)
        losses.append(loss)
    return losses
