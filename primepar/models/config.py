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
from msgspec import Meta, Struct

from primepar.errors import ConfigError
from primepar.schedule.program_method import allowed

# Parts of today's models that the planner prices and no training step here runs
#
# A `ModelConfig` has them in `priced`, or None there. Layers that differ count as the mean layer:
# windows of attention in some layers, and layers without experts before those with them. So all
# layers are equal to a search, and the sums over a model stay exact.
#
# Example: DeepSeek-V3 has 61 layers, of which 3 have no experts. In 58 layers a token meets 8 of
# 256 experts of width 2,048 and one that all share: `Experts(256, 8, 2048, shared=2048, dense=3)`.

Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=1)]


class Experts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Routed experts: a token meets `chosen` of `count`, each of `ffn` columns.

    `shared` are the columns of those that every token meets. The first `dense` layers have none,
    but the feed-forward network of the model's own `ffn`. They are spread over `spread` devices;
    None for as many as divide them.
    """

    count: Size
    chosen: Size
    ffn: Size
    shared: Count = 0
    dense: Count = 0
    spread: Size | None = None


class Latent(Struct, frozen=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2, section 2.1): queries and keys of low rank.

    Of a token `queries` and `keys` columns are made, and `rotary` columns of a key that all heads
    share. From these come the heads: queries and keys of the model's `head_dim`, of which `rotary`
    have a position, and values of `value` columns. Without `queries` they are made in full.
    """

    queries: Count
    keys: Size
    rotary: Size
    value: Size


class PricedParts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a model has beyond `ModelConfig`.

    In `windowed` layers a token attends to the last `window` ones. `small` are parameters that no
    operator here has, all layers together: biases of q, k and v alone, norms of heads, sinks. It is
    below 0 where layers have fewer norms.
    """

    experts: Experts | None = None
    latent: Latent | None = None
    window: Size | None = None
    windowed: Count = 0
    small: int = 0

    @property
    def what(self) -> str | None:
        """Words for what a training step here does not have; None where it computes the same."""
        over = self.experts and self.experts.spread
        experts = f"experts over {over} devices" if over else "experts"
        named = {experts: self.experts, "latent attention": self.latent, "windows": self.window}
        return " and ".join(name for name, part in named.items() if part is not None) or None


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Family = Literal["gpt", "gpt2", "opt", "llama", "bloom"]
Norm = Literal["layer", "rms"]
Activation = Literal["gelu_tanh", "gelu", "relu", "silu"]
Positions = Literal["learned", "rotary", "alibi"]

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
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": _GPT,
    "gpt2": _GPT2,
    "opt": _GPT2 | {"activation": "relu"},
    "llama": _GPT | _LLAMA | {"positions": "rotary"},
    "bloom": _GPT2 | {"positions": "alibi", "embedding_norm": True},
}
"""Family -> values of the fields that are not sizes."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and parts of a model; raises `ConfigError` where they do not fit one another.

    `attention_bias`: biases of qkv and proj; `mlp_bias`: of fc1 and fc2; the head has none; layer
    norms have a bias, RMS norms have none. `gated`: fc1 makes pairs (gate, up), and the activation
    is act(gate) * up. `embedding_norm`: a layer norm after the embedding. `tied`: the head's weight
    is the token table. `embedding_dropout` is applied to the embedding, `dropout` to the outputs of
    proj and fc2, `attention_dropout` to the attention's probabilities. `priced` has parts that no
    training step here has.
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
    priced: PricedParts | None = None

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
        return ModelConfig(family=family, **{**FAMILIES[family], **derived, **sizes, **fields})

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
        expected = {name: FAMILIES[self.family][name] for name in _FIXED}
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
    def experts(self) -> Experts | None:
        """Routed experts, if there are any."""
        return self.priced.experts if self.priced else None

    @property
    def latent(self) -> Latent | None:
        """Latent attention, if the model has it."""
        return self.priced.latent if self.priced else None

    @property
    def group_columns(self) -> int:
        """Columns of qkv that belong to one key/value head: its queries, its key and its value."""
        value = self.latent.value if self.latent else self.head_dim
        return (self.heads // self.kv_heads + 1) * self.head_dim + value

    @property
    def merged_columns(self) -> int:
        """Columns that attention makes: the values of all heads."""
        return self.heads * (self.latent.value if self.latent else self.head_dim)

    @property
    def fc1_columns(self) -> int:
        """Columns of fc1: F, or 2 F where it makes pairs (gate, up)."""
        return 2 * self.ffn if self.gated else self.ffn

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Name -> (N, K) of every linear operator, in the order of execution.

        The columns of `qkv` go group by group, a key/value head's queries, its key and its value
        side by side, so that a slice of columns is a set of whole groups. Those of a gated `fc1` go
        gate 0, up 0, gate 1, up 1 and so on, so that a slice is a set of whole pairs. Of latent
        attention, `down` makes the latent columns, and `qkv` has a matrix for the queries and one
        for the keys and values. A layer with experts has neither fc1 nor fc2.
        """
        shapes = {}
        latent, experts = self.latent, self.experts
        for layer in range(self.layers):
            block, source = f"blocks.{layer}", self.hidden
            if latent:
                source = latent.queries or self.heads * self.head_dim
                source += latent.keys + latent.rotary
                shapes[f"{block}.down"] = (self.hidden, source)
            shapes[f"{block}.qkv"] = (source, self.kv_heads * self.group_columns)
            shapes[f"{block}.proj"] = (self.merged_columns, self.hidden)
            if not experts or layer < experts.dense:
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
            if self.latent and name.endswith(".qkv"):
                shapes |= self._latent_shapes(name, self.latent)
            elif name != "head" or not self.tied:
                shapes[f"{name}.weight"] = shape
            if self._has_bias(name):
                shapes[f"{name}.bias"] = shape[1:]
        if self.experts:
            for layer in range(self.experts.dense, self.layers):
                shapes |= self._expert_shapes(f"blocks.{layer}.experts", self.experts)
        return shapes

    def _latent_shapes(self, qkv: str, latent: Latent) -> dict[str, tuple[int, ...]]:
        """Norms and matrices from the latent columns of a layer to its heads."""
        keys = self.heads * (self.head_dim - latent.rotary + latent.value)
        shapes: dict[str, tuple[int, ...]] = {f"{qkv}.keys": (latent.keys, keys)}
        if latent.queries:
            shapes[f"{qkv}.queries"] = (latent.queries, self.heads * self.head_dim)
        norms = {f"{name}.norm": (source,) for name, (source, _) in shapes.items()}
        return shapes | norms

    def _expert_shapes(self, name: str, experts: Experts) -> dict[str, tuple[int, ...]]:
        """The router of a layer, its experts, and what all tokens share of them."""
        matrices = 3 if self.gated else 2
        shapes: dict[str, tuple[int, ...]] = {
            f"{name}.router": (self.hidden, experts.count),
            f"{name}.routed": (experts.count, self.hidden, matrices * experts.ffn),
        }
        return shapes | {f"{name}.shared": (self.hidden, matrices * experts.shared)}

    def _has_bias(self, linear: str) -> bool:
        if linear == "head":
            return False
        return self.attention_bias if linear.endswith(("qkv", "proj")) else self.mlp_bias

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        small = self.priced.small if self.priced else 0
        return small + sum(prod(shape) for shape in self.parameter_shapes.values())

    @property
    def layer_weights(self) -> dict[str, tuple[float, float]]:
        """Linear operator of the mean layer -> elements of its weights, and those a token meets.

        With experts these are fc1 and fc2 of all kinds together, as `experts`.
        """
        sums: dict[str, list[int]] = {}
        experts = self.experts
        for name, shape in self.parameter_shapes.items():
            _, layer, operator = (*name.split("."), "", "")[:3]
            if not layer.isdecimal() or len(shape) < 2:
                continue
            part = "experts" if experts and operator in ("fc1", "fc2") else operator
            active = (experts.chosen, *shape[1:]) if experts and "routed" in name else shape
            elements = sums.setdefault(part, [0, 0])
            elements[0] += prod(shape)
            elements[1] += prod(active)
        return {part: (elements[0] / self.layers, elements[1] / self.layers)
                for part, elements in sums.items()}  # fmt: skip

    def attended(self, positions: int, causal: bool = True) -> float:
        """Number of keys that a query attends to, as the mean over queries and layers.

        Each query has the keys up to its own: (T + 1) / 2 of T as a mean. With a window it has no
        more than the last ones: of windows of 2, 4 queries have 1, 2, 2 and 2 keys. Not `causal`
        is without the mask, as kernels compute that do not skip what it hides.
        """
        whole = (positions + 1) / 2 if causal else float(positions)
        if not self.priced or not self.priced.window or self.priced.window >= positions:
            return whole
        window, share = self.priced.window, self.priced.windowed / self.layers
        seen = window - window * (window - 1) / (2 * positions)
        return share * seen + (1 - share) * whole


def flops_per_token(model: ModelConfig) -> int:
    """Return a model's floating-point operations of a training step for each token.

    A product of a row with an N x K matrix is 2 N K operations, and twice that backward. Scores
    and weighted sums of attention are 4 T D for each head, of all T positions (equation of PaLM:
    6 N + 12 L H Q T, with the parameters of the linear operators as N), or of those in a window. Of
    routed experts the chosen ones count. Operations that recomputation repeats are not counted.
    """
    linear = sum(active for _, active in model.layer_weights.values())
    products = model.heads * model.head_dim + model.merged_columns
    layer = linear + products * model.attended(model.context, causal=False)
    return round(6 * (model.layers * layer + model.hidden * model.vocabulary))


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
