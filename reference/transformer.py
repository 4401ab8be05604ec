"""The decoder-only transformers of `primepar.models` in NumPy, their backward written by hand.

Their linear operators are a parameter of the model: on one device, or partitioned over emulated
ones. Everything between them is computed whole, so that a difference can only come from them.

Legend: B batch, T positions, H hidden, V vocabulary, A heads, D elements of one head, F ffn,
C columns of qkv, J columns of fc1 (F, or 2 F where it is gated), M = B T rows.
Parameters go by the names of `ModelConfig.parameter_shapes`, and so do their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from primepar.models import ModelConfig, initial_parameter
from primepar.models.dropout import Draw
from primepar.reference.layers import (
    Array,
    Tokens,
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
from primepar.reference.layers_activation import activation, activation_backward
from primepar.reference.layers_attention import Part, attend, attend_backward
from primepar.reference.transformer_checks import check_pair, check_parameters, check_tokens
from primepar.reference.transformer_linears import LinearOperator, dense_linears

Parameters = Mapping[str, Array]


class BlockInputs(NamedTuple):
    """What the backward of one block needs: the inputs of its operators that are not linear."""

    x_BTH: Array
    qkv_BTC: Array
    y_BTH: Array
    h_BTJ: Array


class Kept(NamedTuple):
    """What a forward pass keeps for the backward; `e` is the embedding before its norm."""

    tokens_BT: Tokens
    draw: Draw | None
    e_BTH: Array
    blocks: tuple[BlockInputs, ...]
    x_BTH: Array


@dataclass
class Transformer:
    """The model: its sizes, its parameters, and how each linear operator is computed.

    Raises `ConfigError` if a parameter is missing, unknown or of another shape.
    """

    config: ModelConfig
    parameters: Parameters
    linears: Mapping[str, LinearOperator]

    def __post_init__(self) -> None:
        check_parameters(self.config, self.parameters)

    @classmethod
    def dense(cls, config: ModelConfig, parameters: Parameters) -> Transformer:
        """The model of these parameters on one device."""
        return cls(config, parameters, dense_linears(config))

    @classmethod
    def initial(
        cls,
        config: ModelConfig,
        seed: int = 0,
        dtype: DTypeLike = np.float64,
        linears: Mapping[str, LinearOperator] | None = None,
    ) -> Transformer:
        """The model before training, with linear operators on one device if not told otherwise."""
        parameters: dict[str, Array] = {
            name: initial_parameter(config, name, seed).astype(dtype)
            for name in config.parameter_shapes
        }
        return cls(config, parameters, dense_linears(config) if linears is None else linears)

    def logits(self, tokens_BT: Tokens) -> Array:
        """Scores of every next token: (B, T, V). Raises `ConfigError` for tokens out of range."""
        check_tokens(self.config, "tokens", tokens_BT)
        return self._forward(tokens_BT, None)[0]

    def loss(self, tokens_BT: Tokens, targets_BT: Tokens, draw: Draw | None = None) -> float:
        """Mean cross-entropy in nats. Raises `ConfigError` for tokens out of range."""
        check_pair(self.config, tokens_BT, targets_BT)
        return cross_entropy(self._forward(tokens_BT, draw)[0], targets_BT)

    def loss_and_gradients(
        self, tokens_BT: Tokens, targets_BT: Tokens, draw: Draw | None = None
    ) -> tuple[float, dict[str, Array]]:
        """Mean cross-entropy in nats and its gradient by every parameter.

        With a `draw` the configuration's dropouts are on. Raises `ConfigError` for tokens out of
        range.
        """
        check_pair(self.config, tokens_BT, targets_BT)
        logits_BTV, kept = self._forward(tokens_BT, draw)
        loss = cross_entropy(logits_BTV, targets_BT)
        return loss, self._backward(kept, cross_entropy_backward(logits_BTV, targets_BT))

    def _forward(self, tokens_BT: Tokens, draw: Draw | None) -> tuple[Array, Kept]:
        e_BTH = embedding(tokens_BT, *self._tables())
        e_BTH = self._dropout(draw, self.config.embedding_dropout, "embedding", e_BTH)
        x_BTH = self._norm("embedding.norm", e_BTH) if self.config.embedding_norm else e_BTH
        blocks = []
        for layer in range(self.config.layers):
            x_BTH, inputs = self._block(f"blocks.{layer}", x_BTH, draw)
            blocks.append(inputs)
        logits_BTV = self._linear("head", self._norm("norm", x_BTH))
        return logits_BTV, Kept(tokens_BT, draw, e_BTH, tuple(blocks), x_BTH)

    def _backward(self, kept: Kept, dlogits_BTV: Array) -> dict[str, Array]:
        gradients: dict[str, Array] = {}
        dnormed_BTH = self._linear_backward("head", dlogits_BTV, gradients)
        dx_BTH = self._norm_backward("norm", kept.x_BTH, dnormed_BTH, gradients)
        for layer in reversed(range(self.config.layers)):
            block, inputs = f"blocks.{layer}", kept.blocks[layer]
            dx_BTH = self._block_backward(block, inputs, dx_BTH, kept.draw, gradients)
        if self.config.embedding_norm:
            dx_BTH = self._norm_backward("embedding.norm", kept.e_BTH, dx_BTH, gradients)
        de_BTH = self._dropout(kept.draw, self.config.embedding_dropout, "embedding", dx_BTH)
        tables = embedding_backward(kept.tokens_BT, *self._tables(), de_BTH)
        names = ("embedding.token", "embedding.position")
        gradients.update(zip(names, tables, strict=False))
        if self.config.tied:
            gradients["embedding.token"] += gradients.pop("head.weight").T
        return {name: gradients[name] for name in self.parameters}

    def _block(self, block: str, x_BTH: Array, draw: Draw | None) -> tuple[Array, BlockInputs]:
        part, probability = Part.every(self.config), self.config.dropout
        qkv_BTC = self._linear(f"{block}.qkv", self._norm(f"{block}.norm1", x_BTH))
        o_BTH = attend(part, qkv_BTC, draw, f"{block}.attention")
        branch_BTH = self._linear(f"{block}.proj", o_BTH)
        y_BTH = x_BTH + self._dropout(draw, probability, f"{block}.proj", branch_BTH)
        h_BTJ = self._linear(f"{block}.fc1", self._norm(f"{block}.norm2", y_BTH))
        branch_BTH = self._linear(f"{block}.fc2", activation(self.config, h_BTJ))
        z_BTH = y_BTH + self._dropout(draw, probability, f"{block}.fc2", branch_BTH)
        return z_BTH, BlockInputs(x_BTH, qkv_BTC, y_BTH, h_BTJ)

    def _block_backward(
        self,
        block: str,
        inputs: BlockInputs,
        dz_BTH: Array,
        draw: Draw | None,
        gradients: dict[str, Array],
    ) -> Array:
        part, probability = Part.every(self.config), self.config.dropout
        dbranch_BTH = self._dropout(draw, probability, f"{block}.fc2", dz_BTH)
        df_BTF = self._linear_backward(f"{block}.fc2", dbranch_BTH, gradients)
        dh_BTJ = activation_backward(self.config, inputs.h_BTJ, df_BTF)
        dnorm2_BTH = self._linear_backward(f"{block}.fc1", dh_BTJ, gradients)
        dy_BTH = dz_BTH + self._norm_backward(f"{block}.norm2", inputs.y_BTH, dnorm2_BTH, gradients)
        dbranch_BTH = self._dropout(draw, probability, f"{block}.proj", dy_BTH)
        do_BTH = self._linear_backward(f"{block}.proj", dbranch_BTH, gradients)
        dqkv_BTC = attend_backward(part, inputs.qkv_BTC, do_BTH, draw, f"{block}.attention")
        dnorm1_BTH = self._linear_backward(f"{block}.qkv", dqkv_BTC, gradients)
        return dy_BTH + self._norm_backward(f"{block}.norm1", inputs.x_BTH, dnorm1_BTH, gradients)

    def _tables(self) -> tuple[Array, Array | None]:
        return self.parameters["embedding.token"], self.parameters.get("embedding.position")

    def _weight(self, name: str) -> Array:
        if name == "head" and self.config.tied:
            return self.parameters["embedding.token"].T
        return self.parameters[f"{name}.weight"]

    def _linear(self, name: str, x_BTN: Array) -> Array:
        x_MN = x_BTN.reshape(-1, x_BTN.shape[-1])
        y_MK = self.linears[name].forward(x_MN, self._weight(name))
        if f"{name}.bias" in self.parameters:
            y_MK = y_MK + self.parameters[f"{name}.bias"]
        return y_MK.reshape(*x_BTN.shape[:-1], -1)

    def _linear_backward(self, name: str, dy_BTK: Array, gradients: dict[str, Array]) -> Array:
        dy_MK = dy_BTK.reshape(-1, dy_BTK.shape[-1])
        if f"{name}.bias" in self.parameters:
            gradients[f"{name}.bias"] = dy_MK.sum(axis=0)
        dx_MN, gradients[f"{name}.weight"] = self.linears[name].backward(dy_MK)
        return dx_MN.reshape(*dy_BTK.shape[:-1], -1)

    def _norm(self, name: str, x_BTH: Array) -> Array:
        weight_H = self.parameters[f"{name}.weight"]
        if f"{name}.bias" not in self.parameters:
            return rms_norm(x_BTH, weight_H, self.config.epsilon)
        return layer_norm(x_BTH, weight_H, self.parameters[f"{name}.bias"], self.config.epsilon)

    def _norm_backward(
        self, name: str, x_BTH: Array, dy_BTH: Array, gradients: dict[str, Array]
    ) -> Array:
        has_bias = f"{name}.bias" in self.parameters
        backward = layer_norm_backward if has_bias else rms_norm_backward
        weight_H = self.parameters[f"{name}.weight"]
        dx_BTH, *others = backward(x_BTH, weight_H, dy_BTH, self.config.epsilon)
        names = (f"{name}.weight", f"{name}.bias")
        gradients.update(zip(names, others, strict=False))
        return dx_BTH

    def _dropout(self, draw: Draw | None, probability: float, operator: str, x_BTH: Array) -> Array:
        """Forward of x and, alike, backward of dy."""
        hidden = x_BTH.shape[-1]
        rows_M, columns_H = np.arange(x_BTH.size // hidden), np.arange(hidden)
        kept_MH = kept_elements(draw, probability, operator, rows_M, columns_H, hidden)
        kept_BTH = None if kept_MH is None else kept_MH.reshape(x_BTH.shape)
        return dropout(x_BTH, kept_BTH, probability)
