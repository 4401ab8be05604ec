"""Updates of the NumPy transformer, SGD and AdamW, and the batches of a text.

Optimizers have the formulas of torch.optim.SGD and torch.optim.AdamW. They return new parameters
and do not change the old ones. Settings are Python floats, so that float32 parameters stay in
float32.

Legend: B batch, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from primepar.models import ModelConfig
from primepar.reference.oracle.layers import Array, Tokens
from primepar.reference.oracle.transformer import Parameters


def linear_weights(config: ModelConfig) -> frozenset[str]:
    """Return the names of the parameters with weight decay: the weights of linear operators."""
    return frozenset(f"{name}.weight" for name in config.linear_shapes)


@dataclass(frozen=True)
class SGD:
    """Plain stochastic gradient descent."""

    learning_rate: float

    def step(self, parameters: Parameters, gradients: Parameters) -> dict[str, Array]:
        """Return the parameters after one update."""
        return {
            name: parameter - self.learning_rate * gradients[name]
            for name, parameter in parameters.items()
        }


@dataclass
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2).

    `decayed` names the parameters that decay; `linear_weights` gives them for a model.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decayed: Collection[str] = frozenset()
    steps: int = field(default=0, init=False)
    _first: dict[str, Array] = field(default_factory=dict, init=False, repr=False)
    _second: dict[str, Array] = field(default_factory=dict, init=False, repr=False)

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


def windows(
    text: bytes, batch: int, context: int, seed: int = 0
) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield without end (tokens_BT, targets_BT): windows of `text`, as bytes, at random positions.

    Targets are the tokens one position later, so the text has at least `context` + 1 bytes.
    """
    tokens, generator = np.frombuffer(text, np.uint8).astype(np.int64), np.random.default_rng(seed)
    while True:
        starts_B1 = generator.integers(0, len(tokens) - context, (batch, 1))
        places_BT = starts_B1 + np.arange(context)
        yield tokens[places_BT], tokens[places_BT + 1]
