"""The decoder-only transformer that the NumPy reference and the torch path both build.

Pre-norm blocks as in GPT-2, without biases in the linear operators: embedding of bytes and
positions, then per block  x += proj(attention(norm(x))),  x += fc2(gelu(fc1(norm(x)))),  a last
norm and an untied head. GELU is GPT-2's tanh form.

Legend: V vocabulary, T context, H hidden, L layers, A heads, D = H / A.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from primepar.errors import ConfigError


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model. Raises `ConfigError` where they do not fit one another."""

    layers: int = 4
    hidden: int = 192
    heads: int = 4
    context: int = 128
    vocabulary: int = 256

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "context", "vocabulary"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        if self.hidden % self.heads:
            raise ConfigError(
                f"heads: expected a divisor of hidden={self.hidden}, got {self.heads}"
            )

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Name -> (N, K) of every linear operator, in the order of execution.

        The columns of `qkv` go head by head, each head's query, key and value side by side, so
        that a slice of columns is a set of whole heads.
        """
        shapes = {}
        for layer in range(self.layers):
            block = f"blocks.{layer}"
            shapes[f"{block}.qkv"] = (self.hidden, 3 * self.hidden)
            shapes[f"{block}.proj"] = (self.hidden, self.hidden)
            shapes[f"{block}.fc1"] = (self.hidden, 4 * self.hidden)
            shapes[f"{block}.fc2"] = (4 * self.hidden, self.hidden)
        shapes["head"] = (self.hidden, self.vocabulary)
        return shapes

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter; linear weights are (N, K), norms and biases (H,)."""
        shapes: dict[str, tuple[int, ...]] = {
            "embedding.token": (self.vocabulary, self.hidden),
            "embedding.position": (self.context, self.hidden),
        }
        norms = [f"blocks.{layer}.norm{n}" for layer in range(self.layers) for n in (1, 2)]
        for norm in (*norms, "norm"):
            shapes[f"{norm}.weight"] = (self.hidden,)
            shapes[f"{norm}.bias"] = (self.hidden,)
        shapes.update({f"{name}.weight": shape for name, shape in self.linear_shapes.items()})
        return shapes

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(int(np.prod(shape)) for shape in self.parameter_shapes.values())


def initial_parameter(config: GPTConfig, name: str, seed: int) -> NDArray[np.float64]:
    """Value of one parameter before training, the same on every rank and in every framework.

    Norms start at one, biases at zero, all else at normal(0, 0.02), the last linear operators of
    each residual branch divided by sqrt(2 L) as in GPT-2.
    """
    shape = config.parameter_shapes[name]
    if name.endswith("bias"):
        return np.zeros(shape)
    if "norm" in name:
        return np.ones(shape)
    generator = np.random.default_rng([seed, crc32(name.encode())])
    branch_end = name.endswith(("proj.weight", "fc2.weight"))
    scale = 0.02 / np.sqrt(2 * config.layers) if branch_end else 0.02
    return generator.normal(0.0, scale, shape)
