"""Decoder-only transformers, as the NumPy reference and the torch path both build them.

Every family is an embedding, blocks  x += proj(attention(norm1(x))),  x += fc2(act(fc1(norm2(x)))),
a last norm and a head; `ModelConfig` defines in which of these parts the families differ.

Legend: V vocabulary, T context, H hidden, L layers, A heads, G key/value heads, D head_dim, F ffn.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod
from sys import float_info
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints
from zlib import crc32

import msgspec
from msgspec import Meta

from primepar.errors import ConfigError
from primepar.schedule.program_method import allowed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Family = Literal["gpt", "gpt2", "opt", "llama", "bloom"]
Norm = Literal["layer", "rms"]
Activation = Literal["gelu_tanh", "gelu", "relu", "silu"]
Positions = Literal["learned", "rotary", "alibi"]

Size = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0, le=float_info.max)]
Probability = Annotated[float, Meta(ge=0, lt=1)]

_FIXED = ("norm", "gated", "positions", "embedding_norm")  # what Hugging Face names depend on
_GPT = {
    "norm": "layer",
    "epsilon": 1e-5,
    "activation": "gelu_tanh",
    "gated": False,
    "attention_bias": False,
    "mlp_bias": False,
    "positions": "learned",
    "rope_theta": 10000.0,
    "embedding_norm": False,
    "tied": False,
    "embedding_dropout": 0.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
_GPT2 = _GPT | {"attention_bias": True, "mlp_bias": True, "tied": True}
_LLAMA = {"norm": "rms", "epsilon": 1e-6, "activation": "silu", "gated": True}
_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": _GPT,
    "gpt2": _GPT2,
    "opt": _GPT2 | {"activation": "relu"},
    "llama": _GPT | _LLAMA | {"positions": "rotary"},
    "bloom": _GPT2 | {"positions": "alibi", "embedding_norm": True},
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and parts of a model; raises `ConfigError` where they do not fit one another.

    `attention_bias`: biases of qkv and proj; `mlp_bias`: of fc1 and fc2; the head has none; layer
    norms have a bias, RMS norms have none. `gated`: fc1 makes pairs (gate, up), and the activation
    is act(gate) * up. `embedding_norm`: a layer norm after the embedding. `tied`: the head's weight
    is the token table. `embedding_dropout` is applied to the embedding, `dropout` to the outputs of
    proj and fc2, `attention_dropout` to the attention's probabilities.
    """

    family: Family
    layers: Size
    hidden: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    ffn: Size
    context: Size
    vocabulary: Size
    norm: Norm
    epsilon: Positive
    activation: Activation
    gated: bool
    attention_bias: bool
    mlp_bias: bool
    positions: Positions
    rope_theta: Positive
    embedding_norm: bool
    tied: bool
    embedding_dropout: Probability
    dropout: Probability
    attention_dropout: Probability

    @classmethod
    def of(cls, family: Family, *, hidden: int, heads: int, **fields: Any) -> ModelConfig:
        """Model of a family; fields that are not given have the family's values.

        Needs `layers`, `context` and `vocabulary`. Unless given, `kv_heads` is `heads`, `head_dim`
        is H / A, `ffn` is 4 H and there is no dropout. Raises `ConfigError`.
        """
        sizes = {"hidden": hidden, "heads": heads}
        _check({"family": family} | sizes)
        if "head_dim" not in fields and hidden % heads:
            raise ConfigError(f"heads: expected a divisor of hidden={hidden}, got {heads}")
        derived = {"kv_heads": heads, "head_dim": hidden // heads, "ffn": 4 * hidden}
        return ModelConfig(family=family, **{**_FAMILIES[family], **derived, **sizes, **fields})

    def __post_init__(self) -> None:
        _check({field.name: getattr(self, field.name) for field in fields(ModelConfig)})
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"kv_heads: expected a divisor of heads={self.heads}, got {self.kv_heads}"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ConfigError(
                f"head_dim: expected an even number for rotary positions, got {self.head_dim}"
            )
        if self.family == "gpt":
            return  # It mixes parts freely; the others' files have names for their own alone.
        expected = {name: _FAMILIES[self.family][name] for name in _FIXED}
        if self.family != "llama":
            expected["kv_heads"] = self.heads
            if self.heads * self.head_dim != self.hidden:
                raise ConfigError(
                    f"head_dim: expected hidden / heads = {self.hidden} / {self.heads} in the "
                    f"family {self.family}, got {self.head_dim}"
                )
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise ConfigError(
                    f"{name}: expected {value!r} in the family {self.family}, "
                    f"got {getattr(self, name)!r}"
                )

    @property
    def group_columns(self) -> int:
        """Columns of qkv that belong to one key/value head: its queries, its key and its value."""
        return (self.heads // self.kv_heads + 2) * self.head_dim

    @property
    def fc1_columns(self) -> int:
        """Columns of fc1: F, or 2 F where it makes pairs (gate, up)."""
        return 2 * self.ffn if self.gated else self.ffn

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Name -> (N, K) of every linear operator, in the order of execution.

        The columns of `qkv` go group by group, a key/value head's queries, its key and its value
        side by side, so that a slice of columns is a set of whole groups. Those of a gated `fc1` go
        gate 0, up 0, gate 1, up 1 and so on, so that a slice is a set of whole pairs.
        """
        shapes = {}
        for layer in range(self.layers):
            block = f"blocks.{layer}"
            shapes[f"{block}.qkv"] = (self.hidden, self.kv_heads * self.group_columns)
            shapes[f"{block}.proj"] = (self.heads * self.head_dim, self.hidden)
            shapes[f"{block}.fc1"] = (self.hidden, self.fc1_columns)
            shapes[f"{block}.fc2"] = (self.ffn, self.hidden)
        shapes["head"] = (self.hidden, self.vocabulary)
        return shapes

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter, without the head's weight where it is the token table.

        Linear weights are (N, K), their biases (K,), norms and their biases (H,).
        """
        shapes: dict[str, tuple[int, ...]] = {"embedding.token": (self.vocabulary, self.hidden)}
        if self.positions == "learned":
            shapes["embedding.position"] = (self.context, self.hidden)
        if self.embedding_norm:
            shapes["embedding.norm.weight"] = shapes["embedding.norm.bias"] = (self.hidden,)
        norms = [f"blocks.{layer}.norm{n}" for layer in range(self.layers) for n in (1, 2)]
        for norm in (*norms, "norm"):
            shapes[f"{norm}.weight"] = (self.hidden,)
            if self.norm == "layer":
                shapes[f"{norm}.bias"] = (self.hidden,)
        for name, shape in self.linear_shapes.items():
            if name != "head" or not self.tied:
                shapes[f"{name}.weight"] = shape
            if self._has_bias(name):
                shapes[f"{name}.bias"] = shape[1:]
        return shapes

    def _has_bias(self, linear: str) -> bool:
        if linear == "head":
            return False
        return self.attention_bias if linear.endswith(("qkv", "proj")) else self.mlp_bias

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(prod(shape) for shape in self.parameter_shapes.values())


def flops_per_token(model: ModelConfig) -> int:
    """Return a model's floating-point operations of a training step for each token.

    A product of a row with an N x K matrix is 2 N K operations, and twice that backward. Scores
    and weighted sums of attention are 4 T D for each head, of all T positions (equation of PaLM:
    6 N + 12 L H Q T, with the parameters of the linear operators as N). Operations that
    recomputation repeats are not counted.
    """
    linear = sum(prod(shape) for shape in model.linear_shapes.values())
    attention = 2 * model.layers * model.heads * model.head_dim * model.context
    return 6 * (linear + attention)


def GPTConfig(
    layers: int = 4, hidden: int = 192, heads: int = 4, context: int = 128, vocabulary: int = 256
) -> ModelConfig:
    """Our own GPT over bytes, pre-norm as GPT-2, no biases in linear operators, an untied head."""
    others = {"layers": layers, "context": context, "vocabulary": vocabulary}
    return ModelConfig.of("gpt", hidden=hidden, heads=heads, **others)


KINDS = get_type_hints(ModelConfig, include_extras=True)
"""Field of a model -> its type with its bounds."""


def _check(values: dict[str, Any]) -> None:
    """Raise `ConfigError` for a value that is beyond the bounds of its field."""
    for name, value in values.items():
        try:
            msgspec.convert(value, KINDS[name])
        except msgspec.ValidationError:
            raise ConfigError(f"{name}: expected {allowed(KINDS[name])}, got {value!r}") from None


def initial_parameter(config: ModelConfig, name: str, seed: int) -> NDArray[np.float64]:
    """Value of one parameter before training, the same on every rank and in every framework.

    Norms start at one, biases at zero, all else at normal(0, 0.02), the last linear operators of
    each residual branch divided by sqrt(2 L) as in GPT-2.
    """
    import numpy as np

    shape = config.parameter_shapes[name]
    if name.endswith("bias"):
        return np.zeros(shape)
    if "norm" in name:
        return np.ones(shape)
    generator = np.random.default_rng([seed, crc32(name.encode())])
    branch_end = name.endswith(("proj.weight", "fc2.weight"))
    scale = 0.02 / np.sqrt(2 * config.layers) if branch_end else 0.02
    return generator.normal(0.0, scale, shape)
