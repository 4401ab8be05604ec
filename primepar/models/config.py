"""Decoder-only transformers, as the NumPy reference and the torch path both build them.

Every family is an embedding, blocks  x += proj(attention(norm1(x))),  x += fc2(act(fc1(norm2(x)))),
a last norm and a head; `ModelConfig` defines in which of these parts the families differ.

Legend: V vocabulary, T context, H hidden, L layers, A heads, G key/value heads, D head_dim, F ffn.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args
from zlib import crc32

from primepar.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Family = Literal["gpt", "gpt2", "opt", "llama", "bloom"]
Norm = Literal["layer", "rms"]
Activation = Literal["gelu_tanh", "gelu", "relu", "silu"]
Positions = Literal["learned", "rotary", "alibi"]

_CHOICES = {"family": Family, "norm": Norm, "activation": Activation, "positions": Positions}
_SIZES = ("layers", "hidden", "heads", "context", "vocabulary")
_FIXED = ("norm", "gated", "positions", "embedding_norm")  # what Hugging Face names depend on
_DROPOUTS = ("embedding_dropout", "dropout", "attention_dropout")
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelConfig:
    """Sizes and parts of a model; raises `ConfigError` where they do not fit one another.

    `attention_bias`: biases of qkv and proj; `mlp_bias`: of fc1 and fc2; the head has none; layer
    norms have a bias, RMS norms have none. `gated`: fc1 makes pairs (gate, up), and the activation
    is act(gate) * up. `embedding_norm`: a layer norm after the embedding. `tied`: the head's weight
    is the token table. `embedding_dropout` is applied to the embedding, `dropout` to the outputs of
    proj and fc2, `attention_dropout` to the attention's probabilities.
    """

    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    vocabulary: int
    norm: Norm
    epsilon: float
    activation: Activation
    gated: bool
    attention_bias: bool
    mlp_bias: bool
    positions: Positions
    rope_theta: float
    embedding_norm: bool
    tied: bool
    embedding_dropout: float
    dropout: float
    attention_dropout: float

    @classmethod
    def of(cls, family: Family, *, hidden: int, heads: int, **fields: Any) -> ModelConfig:
        """Model of a family; fields that are not given have the family's values.

        Needs `layers`, `context` and `vocabulary`. Unless given, `kv_heads` is `heads`, `head_dim`
        is H / A, `ffn` is 4 H and there is no dropout. Raises `ConfigError`.
        """
        _check_choice("family", family)
        sizes = {"hidden": hidden, "heads": heads}
        _check_sizes({name: (sizes | fields).get(name, 1) for name in _SIZES})
        if "head_dim" not in fields and hidden % heads:
            raise ConfigError(f"heads: expected a divisor of hidden={hidden}, got {heads}")
        derived = {"kv_heads": heads, "head_dim": hidden // heads, "ffn": 4 * hidden}
        return ModelConfig(family=family, **{**_FAMILIES[family], **derived, **sizes, **fields})

    def with_sizes(self, *, tied: bool | None = None, **sizes: int) -> ModelConfig:
        """The same model with other sizes, or with a head that is `tied` or not."""
        values = {field.name: getattr(self, field.name) for field in fields(ModelConfig)}
        return ModelConfig(**values | sizes | ({} if tied is None else {"tied": tied}))

    def __post_init__(self) -> None:
        _check_sizes({name: getattr(self, name) for name in _SIZES})
        _check_sizes({name: getattr(self, name) for name in ("kv_heads", "head_dim", "ffn")})
        for name in _CHOICES:
            _check_choice(name, getattr(self, name))
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"kv_heads: expected a divisor of heads={self.heads}, got {self.kv_heads}"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ConfigError(
                f"head_dim: expected an even number for rotary positions, got {self.head_dim}"
            )
        self._check_family()
        for name in ("epsilon", "rope_theta"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}: expected a positive number, got {getattr(self, name)}")
        for name in _DROPOUTS:
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}: expected a probability of at least 0 and below 1, "
                    f"got {getattr(self, name)}"
                )

    def _check_family(self) -> None:
        """Only our own family mixes parts freely: the others have names for their own alone."""
        if self.family == "gpt":
            return
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelConfig) and astuple(self) == astuple(other)

    def __hash__(self) -> int:
        return hash(astuple(self))

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


class GPTConfig(ModelConfig):
    """Our own GPT over bytes, pre-norm as GPT-2, no biases in linear operators, an untied head."""

    layers: int = 4
    hidden: int = 192
    heads: int = 4
    context: int = 128
    vocabulary: int = 256

    def __init__(
        self,
        layers: int = layers,
        hidden: int = hidden,
        heads: int = heads,
        context: int = context,
        vocabulary: int = vocabulary,
    ) -> None:
        others = {"layers": layers, "context": context, "vocabulary": vocabulary}
        model = ModelConfig.of("gpt", hidden=hidden, heads=heads, **others)
        vars(self).update(vars(model))

    def __repr__(self) -> str:
        return f"GPTConfig({', '.join(f'{name}={getattr(self, name)}' for name in _SIZES)})"


def _check_sizes(sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name}: expected 1 or more, got {size}")


def _check_choice(name: str, got: str) -> None:
    choices = get_args(_CHOICES[name])
    if got not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {got!r}")


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
