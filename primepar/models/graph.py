"""The operators of a model in the order of execution: what a plan names a sequence for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from primepar.models.config import ModelConfig

Kind = Literal["embedding", "norm", "linear", "attention", "activation", "experts", "add", "loss"]


@dataclass(frozen=True)
class Operator:
    """One operator, which makes K features of N for every one of the M tokens of a step.

    `inputs` names the operators whose outputs it takes; the embedding takes tokens and has none.
    (N, K) is (V, H) for the embedding, the weight's shape for a linear operator, (columns of qkv,
    A D) for the attention, and (columns of fc1, F) for an activation. It is (H, H) for a norm or an
    addition, and (V, V) for the loss, which makes the gradient of the logits. `experts`, (H, H),
    route every token to a few feed-forward networks, their products and activations in between.
    `weights` are the elements of the weights where they are not N K, `active` those a token meets.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    N: int
    K: int
    weights: float | None = None
    active: float | None = None


def operators(config: ModelConfig) -> tuple[Operator, ...]:
    """Operators of a model in the order of execution; each comes after its inputs."""
    stream = "embedding"
    graph = [Operator(stream, "embedding", (), config.vocabulary, config.hidden)]
    if config.embedding_norm:
        graph.append(_norm(config, "embedding.norm", stream))
        stream = "embedding.norm"
    for layer in range(config.layers):
        graph += _block(config, f"blocks.{layer}", stream)
        stream = graph[-1].name
    graph.append(_norm(config, "norm", stream))
    graph.append(Operator("head", "linear", ("norm",), *config.linear_shapes["head"]))
    graph.append(Operator("loss", "loss", ("head",), config.vocabulary, config.vocabulary))
    return tuple(graph)


def stack(config: ModelConfig) -> tuple[Operator, ...]:
    """The blocks of a model alone, after the addition that the first takes its input from."""
    graph = [Operator("stream", "add", (), config.hidden, config.hidden)]
    for layer in range(config.layers):
        graph += _block(config, f"blocks.{layer}", graph[-1].name)
    return tuple(graph)


def layer_operators(config: ModelConfig) -> tuple[str, ...]:
    """The names of the operators of a layer, without that of the layer: `norm1`, `qkv`, ..."""
    return tuple(operator.name.split(".")[2] for operator in _block(config, "blocks.0", ""))


def _norm(config: ModelConfig, name: str, source: str, columns: int = 0) -> Operator:
    columns = columns or config.hidden
    return Operator(name, "norm", (source,), columns, columns)


def _block(config: ModelConfig, block: str, stream: str) -> list[Operator]:
    """Operators of one block whose input is the output of `stream`; the last is its output."""
    shapes, hidden = config.linear_shapes, config.hidden

    def linear(name: str, source: str) -> Operator:
        full = f"{block}.{name}"
        return Operator(full, "linear", (f"{block}.{source}",), *shapes[full])

    def add(name: str, stream: str, branch: str) -> Operator:
        return Operator(f"{block}.{name}", "add", (stream, f"{block}.{branch}"), hidden, hidden)

    columns, merged = shapes[f"{block}.qkv"][1], config.merged_columns
    attention = Operator(f"{block}.attention", "attention", (f"{block}.qkv",), columns, merged)
    qkv = [linear("qkv", "norm1")]
    if config.latent:
        latent, weights = shapes[f"{block}.down"][1], config.layer_weights["qkv"]
        qkv = [
            linear("down", "norm1"),
            _norm(config, f"{block}.latent", f"{block}.down", latent),
            Operator(f"{block}.qkv", "linear", (f"{block}.latent",), latent, columns, *weights),
        ]
    if config.experts:
        weights, inputs = config.layer_weights["experts"], (f"{block}.norm2",)
        ffn = [Operator(f"{block}.experts", "experts", inputs, hidden, hidden, *weights)]
    else:
        columns, inputs = config.fc1_columns, (f"{block}.fc1",)
        act = Operator(f"{block}.act", "activation", inputs, columns, config.ffn)
        ffn = [linear("fc1", "norm2"), act, linear("fc2", "act")]
    return [
        _norm(config, f"{block}.norm1", stream),
        *qkv,
        attention,
        linear("proj", "attention"),
        add("add1", stream, "proj"),
        _norm(config, f"{block}.norm2", f"{block}.add1"),
        *ffn,
        add("add2", f"{block}.add1", ffn[-1].name.rpartition(".")[2]),
    ]
