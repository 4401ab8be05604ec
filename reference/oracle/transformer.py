"""The decoder-only transformers of `primepar.models` in NumPy, with a hand-written backward.

This is the oracle: one device, full tensors, no program and no kernel.

Legend: B batch, T positions, H hidden, V vocabulary, A heads, D elements of one head, F ffn,
C columns of qkv, J columns of fc1 (F, or 2 F with a gate), M = B T rows.
Parameters and gradients have the names of `ModelConfig.parameter_shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from primepar.errors import ConfigError
from primepar.models import ModelConfig, initial_parameter
from primepar.models.dropout import Draw
from primepar.reference.oracle.attention import AttentionPart, attend, attend_backward
from primepar.reference.oracle.layers import (
    Array,
    Tokens,
    activation,
    activation_backward,
    cross_entropy,
    cross_entropy_backward,
    dropout,
    embedding,
    embedding_backward,
    kept_elements,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from primepar.reference.oracle.linear import linear, linear_backward

Parameters = Mapping[str, Array]


class Kept(NamedTuple):
    """Activations that a forward pass keeps for backward: the inputs of the operators by name."""

    tokens_BT: Tokens
    draw: Draw | None
    inputs: dict[str, Array]


@dataclass
class Transformer:
    """The model: its sizes and its parameters.

    Raises `ConfigError` if a parameter is missing, unknown or of another shape.
    """

    config: ModelConfig
    parameters: Parameters

    def __post_init__(self) -> None:
        check_parameters(self.config, self.parameters)

    @classmethod
    def initial(
        cls, config: ModelConfig, seed: int = 0, dtype: DTypeLike = np.float64
    ) -> Transformer:
        """Return the model before training."""
        return cls(
            config,
            {
                name: initial_parameter(config, name, seed).astype(dtype)
                for name in config.parameter_shapes
            },
        )

    def logits(self, tokens_BT: Tokens) -> Array:
        """Return the logits of every next token: (B, T, V).

        Raises `ConfigError` for tokens out of range.
        """
        check_tokens(self.config, "tokens", tokens_BT)
        return self._forward(tokens_BT, None)[0]

    def loss(self, tokens_BT: Tokens, targets_BT: Tokens, draw: Draw | None = None) -> float:
        """Return the mean cross-entropy in nats. Raises `ConfigError` for tokens out of range."""
        check_pair(self.config, tokens_BT, targets_BT)
        return cross_entropy(self._forward(tokens_BT, draw)[0], targets_BT)

    def loss_and_gradients(
        self, tokens_BT: Tokens, targets_BT: Tokens, draw: Draw | None = None
    ) -> tuple[float, dict[str, Array]]:
        """Return the mean cross-entropy in nats and the gradients of all parameters.

        With a `draw`, dropout is on. Raises `ConfigError` for tokens out of range.
        """
        check_pair(self.config, tokens_BT, targets_BT)
        logits_BTV, kept = self._forward(tokens_BT, draw)
        loss = cross_entropy(logits_BTV, targets_BT)
        return loss, self._backward(kept, cross_entropy_backward(logits_BTV, targets_BT))

    def _forward(self, tokens_BT: Tokens, draw: Draw | None) -> tuple[Array, Kept]:
        kept = Kept(tokens_BT, draw, {})
        x_BTH = embedding(tokens_BT, *self._tables())
        x_BTH = self._dropout(draw, self.config.embedding_dropout, "embedding", x_BTH)
        if self.config.embedding_norm:
            x_BTH = self._norm("embedding.norm", x_BTH, kept)
        for layer in range(self.config.layers):
            x_BTH = self._block(f"blocks.{layer}", x_BTH, kept)
        return self._linear("head", self._norm("norm", x_BTH, kept), kept), kept

    def _backward(self, kept: Kept, dlogits_BTV: Array) -> dict[str, Array]:
        gradients: dict[str, Array] = {}
        dnormed_BTH = self._linear_backward("head", dlogits_BTV, kept, gradients)
        dx_BTH = self._norm_backward("norm", dnormed_BTH, kept, gradients)
        for layer in reversed(range(self.config.layers)):
            dx_BTH = self._block_backward(f"blocks.{layer}", dx_BTH, kept, gradients)
        if self.config.embedding_norm:
            dx_BTH = self._norm_backward("embedding.norm", dx_BTH, kept, gradients)
        de_BTH = self._dropout(kept.draw, self.config.embedding_dropout, "embedding", dx_BTH)
        tables = embedding_backward(kept.tokens_BT, *self._tables(), de_BTH)
        names = ("embedding.token", "embedding.position")
        gradients.update(zip(names, tables, strict=False))
        if self.config.tied:
            gradients["embedding.token"] += gradients.pop("head.weight").T
        return {name: gradients[name] for name in self.parameters}

    def _block(self, block: str, x_BTH: Array, kept: Kept) -> Array:
        part, probability = AttentionPart.every(self.config), self.config.dropout
        qkv_BTC = self._linear(f"{block}.qkv", self._norm(f"{block}.norm1", x_BTH, kept), kept)
        kept.inputs[f"{block}.attention"] = qkv_BTC
        o_BTH = attend(part, qkv_BTC, kept.draw, f"{block}.attention")
        branch_BTH = self._linear(f"{block}.proj", o_BTH, kept)
        y_BTH = x_BTH + self._dropout(kept.draw, probability, f"{block}.proj", branch_BTH)
        h_BTJ = self._linear(f"{block}.fc1", self._norm(f"{block}.norm2", y_BTH, kept), kept)
        kept.inputs[f"{block}.act"] = h_BTJ
        branch_BTH = self._linear(f"{block}.fc2", activation(self.config, h_BTJ), kept)
        return y_BTH + self._dropout(kept.draw, probability, f"{block}.fc2", branch_BTH)

    def _block_backward(
        self, block: str, dz_BTH: Array, kept: Kept, gradients: dict[str, Array]
    ) -> Array:
        part, draw, probability = AttentionPart.every(self.config), kept.draw, self.config.dropout
        dbranch_BTH = self._dropout(draw, probability, f"{block}.fc2", dz_BTH)
        df_BTF = self._linear_backward(f"{block}.fc2", dbranch_BTH, kept, gradients)
        dh_BTJ = activation_backward(self.config, kept.inputs[f"{block}.act"], df_BTF)
        dnorm2_BTH = self._linear_backward(f"{block}.fc1", dh_BTJ, kept, gradients)
        dy_BTH = dz_BTH + self._norm_backward(f"{block}.norm2", dnorm2_BTH, kept, gradients)
        dbranch_BTH = self._dropout(draw, probability, f"{block}.proj", dy_BTH)
        do_BTH = self._linear_backward(f"{block}.proj", dbranch_BTH, kept, gradients)
        name = f"{block}.attention"
        dqkv_BTC = attend_backward(part, kept.inputs[name], do_BTH, draw, name)
        dnorm1_BTH = self._linear_backward(f"{block}.qkv", dqkv_BTC, kept, gradients)
        return dy_BTH + self._norm_backward(f"{block}.norm1", dnorm1_BTH, kept, gradients)

    def _tables(self) -> tuple[Array, Array | None]:
        return self.parameters["embedding.token"], self.parameters.get("embedding.position")

    def _weight(self, name: str) -> Array:
        if name == "head" and self.config.tied:
            return self.parameters["embedding.token"].T
        return self.parameters[f"{name}.weight"]

    def _linear(self, name: str, x_BTN: Array, kept: Kept) -> Array:
        kept.inputs[name] = x_BTN
        y_BTK = linear(x_BTN, self._weight(name))
        bias_K = self.parameters.get(f"{name}.bias")
        return y_BTK if bias_K is None else y_BTK + bias_K

    def _linear_backward(
        self, name: str, dy_BTK: Array, kept: Kept, gradients: dict[str, Array]
    ) -> Array:
        if f"{name}.bias" in self.parameters:
            gradients[f"{name}.bias"] = dy_BTK.sum(axis=(0, 1))
        dx_BTN, gradients[f"{name}.weight"] = linear_backward(
            kept.inputs[name], self._weight(name), dy_BTK
        )
        return dx_BTN

    def _norm(self, name: str, x_BTH: Array, kept: Kept) -> Array:
        kept.inputs[name] = x_BTH
        weight_H = self.parameters[f"{name}.weight"]
        if f"{name}.bias" not in self.parameters:
            return rms_norm(x_BTH, weight_H, self.config.epsilon)
        return layer_norm(x_BTH, weight_H, self.parameters[f"{name}.bias"], self.config.epsilon)

    def _norm_backward(
        self, name: str, dy_BTH: Array, kept: Kept, gradients: dict[str, Array]
    ) -> Array:
        has_bias = f"{name}.bias" in self.parameters
        backward = layer_norm_backward if has_bias else rms_norm_backward
        weight_H, x_BTH = self.parameters[f"{name}.weight"], kept.inputs[name]
        dx_BTH, *others = backward(x_BTH, weight_H, dy_BTH, self.config.epsilon)
        names = (f"{name}.weight", f"{name}.bias")
        gradients.update(zip(names, others, strict=False))
        return dx_BTH

    def _dropout(self, draw: Draw | None, probability: float, operator: str, x_BTH: Array) -> Array:
        """Apply dropout to x in forward, or to dy in backward."""
        hidden = x_BTH.shape[-1]
        rows_M, columns_H = np.arange(x_BTH.size // hidden), np.arange(hidden)
        kept_MH = kept_elements(draw, probability, operator, rows_M, columns_H, hidden)
        kept_BTH = None if kept_MH is None else kept_MH.reshape(x_BTH.shape)
        return dropout(x_BTH, kept_BTH, probability)


def check_parameters(config: ModelConfig, parameters: Mapping[str, Array]) -> None:
    """Raise `ConfigError` if a parameter is missing, unknown or of another shape."""
    expected = config.parameter_shapes
    for name in parameters:
        if name not in expected:
            raise ConfigError(
                f"parameters: expected names like {next(iter(expected))!r}, of "
                f"{config.family}.parameter_shapes, got {name!r}"
            )
    for name, shape in expected.items():
        got = parameters[name].shape if name in parameters else "no such parameter"
        if got != shape:
            raise ConfigError(f"{name}: expected shape {shape}, got {got}")


def check_pair(config: ModelConfig, tokens_BT: Tokens, targets_BT: Tokens) -> None:
    """Raise `ConfigError` unless both are tokens of the model, and of one shape."""
    check_tokens(config, "tokens", tokens_BT)
    check_tokens(config, "targets", targets_BT)
    if tokens_BT.shape != targets_BT.shape:
        raise ConfigError(
            f"targets: expected the shape of the tokens, {tokens_BT.shape}, got {targets_BT.shape}"
        )


def check_tokens(config: ModelConfig, what: str, tokens_BT: Tokens) -> None:
    """Raise `ConfigError` for tokens out of the vocabulary, or more than the context."""
    context, vocabulary = config.context, config.vocabulary
    if tokens_BT.ndim != 2 or not tokens_BT.size or tokens_BT.shape[1] > context:
        raise ConfigError(
            f"{what}: expected shape (batch, positions) with 1 to {context} positions "
            f"(context={context}), got {tokens_BT.shape}"
        )
    outside = np.argwhere((tokens_BT < 0) | (tokens_BT >= vocabulary))
    if len(outside):
        row, position = outside[0]
        raise ConfigError(
            f"{what}: expected tokens from 0 to {vocabulary - 1} (vocabulary={vocabulary}), "
            f"got {tokens_BT[row, position]} at [{row}, {position}]"
        )
