"""The decoder-only transformer of `primepar.models` in NumPy, with its backward written by hand.

Its linear operators are a parameter of the model: on one device, or partitioned over emulated
ones. Everything between them is computed whole, so that a difference can only come from them.

Legend: B batch, T positions, H hidden, V vocabulary, A heads, D elements of one head, F = 4 H.
Parameters go by the names of `GPTConfig.parameter_shapes`, and so do their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from primepar.errors import ConfigError
from primepar.models import GPTConfig, initial_parameter
from primepar.reference.layers import (
    Array,
    Tokens,
    attention,
    attention_backward,
    cross_entropy,
    cross_entropy_backward,
    embedding,
    embedding_backward,
    gelu,
    gelu_backward,
    layer_norm,
    layer_norm_backward,
    merge_heads,
    merge_heads_backward,
    split_heads,
    split_heads_backward,
)
from primepar.reference.transformer_linears import LinearOperator, dense_linears

Parameters = Mapping[str, Array]


class BlockInputs(NamedTuple):
    """What the backward of one block needs: the inputs of its operators that are not linear."""

    x_BTH: Array
    qkv_BATD: tuple[Array, Array, Array]
    y_BTH: Array
    h_BTF: Array


class Kept(NamedTuple):
    """What a forward pass keeps for the backward."""

    tokens_BT: Tokens
    blocks: tuple[BlockInputs, ...]
    x_BTH: Array


@dataclass
class Transformer:
    """The model: its sizes, its parameters, and how each linear operator is computed.

    Raises `ConfigError` if a parameter is missing, unknown or of another shape.
    """

    config: GPTConfig
    parameters: Parameters
    linears: Mapping[str, LinearOperator]

    def __post_init__(self) -> None:
        expected = self.config.parameter_shapes
        for name in self.parameters:
            if name not in expected:
                raise ConfigError(
                    f"parameters: expected names of {self.config}.parameter_shapes, got {name!r}"
                )
        for name, shape in expected.items():
            got = self.parameters[name].shape if name in self.parameters else "no such parameter"
            if got != shape:
                raise ConfigError(f"{name}: expected shape {shape}, got {got}")

    @classmethod
    def initial(
        cls,
        config: GPTConfig,
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
        self._check("tokens", tokens_BT)
        return self._forward(tokens_BT)[0]

    def loss(self, tokens_BT: Tokens, targets_BT: Tokens) -> float:
        """Mean cross-entropy in nats. Raises `ConfigError` for tokens out of range."""
        self._check_pair(tokens_BT, targets_BT)
        return cross_entropy(self._forward(tokens_BT)[0], targets_BT)

    def loss_and_gradients(
        self, tokens_BT: Tokens, targets_BT: Tokens
    ) -> tuple[float, dict[str, Array]]:
        """Mean cross-entropy in nats and its gradient by every parameter.

        Raises `ConfigError` for tokens out of range.
        """
        self._check_pair(tokens_BT, targets_BT)
        logits_BTV, kept = self._forward(tokens_BT)
        loss = cross_entropy(logits_BTV, targets_BT)
        return loss, self._backward(kept, cross_entropy_backward(logits_BTV, targets_BT))

    def _check_pair(self, tokens_BT: Tokens, targets_BT: Tokens) -> None:
        self._check("tokens", tokens_BT)
        self._check("targets", targets_BT)
        if tokens_BT.shape != targets_BT.shape:
            raise ConfigError(
                f"targets: expected the shape of the tokens, {tokens_BT.shape}, "
                f"got {targets_BT.shape}"
            )

    def _check(self, what: str, tokens_BT: Tokens) -> None:
        context, vocabulary = self.config.context, self.config.vocabulary
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

    def _forward(self, tokens_BT: Tokens) -> tuple[Array, Kept]:
        token_VH, position_TH = (self.parameters[f"embedding.{n}"] for n in ("token", "position"))
        x_BTH = embedding(tokens_BT, token_VH, position_TH)
        blocks = []
        for layer in range(self.config.layers):
            x_BTH, inputs = self._block(f"blocks.{layer}", x_BTH)
            blocks.append(inputs)
        logits_BTV = self._linear("head", self._norm("norm", x_BTH))
        return logits_BTV, Kept(tokens_BT, tuple(blocks), x_BTH)

    def _backward(self, kept: Kept, dlogits_BTV: Array) -> dict[str, Array]:
        gradients: dict[str, Array] = {}
        dnormed_BTH = self._linear_backward("head", dlogits_BTV, gradients)
        dx_BTH = self._norm_backward("norm", kept.x_BTH, dnormed_BTH, gradients)
        for layer in reversed(range(self.config.layers)):
            dx_BTH = self._block_backward(f"blocks.{layer}", kept.blocks[layer], dx_BTH, gradients)
        names = ("embedding.token", "embedding.position")
        token_VH, position_TH = (self.parameters[name] for name in names)
        tables = embedding_backward(kept.tokens_BT, token_VH, position_TH, dx_BTH)
        gradients.update(zip(names, tables, strict=True))
        return {name: gradients[name] for name in self.parameters}

    def _block(self, block: str, x_BTH: Array) -> tuple[Array, BlockInputs]:
        qkv_BTC = self._linear(f"{block}.qkv", self._norm(f"{block}.norm1", x_BTH))
        qkv_BATD = split_heads(qkv_BTC, self.config.heads)
        o_BTH = merge_heads(attention(*qkv_BATD))
        y_BTH = x_BTH + self._linear(f"{block}.proj", o_BTH)
        h_BTF = self._linear(f"{block}.fc1", self._norm(f"{block}.norm2", y_BTH))
        z_BTH = y_BTH + self._linear(f"{block}.fc2", gelu(h_BTF))
        return z_BTH, BlockInputs(x_BTH, qkv_BATD, y_BTH, h_BTF)

    def _block_backward(
        self, block: str, inputs: BlockInputs, dz_BTH: Array, gradients: dict[str, Array]
    ) -> Array:
        dgelu_BTF = self._linear_backward(f"{block}.fc2", dz_BTH, gradients)
        dh_BTF = gelu_backward(inputs.h_BTF, dgelu_BTF)
        dnorm2_BTH = self._linear_backward(f"{block}.fc1", dh_BTF, gradients)
        dy_BTH = dz_BTH + self._norm_backward(f"{block}.norm2", inputs.y_BTH, dnorm2_BTH, gradients)
        do_BTH = self._linear_backward(f"{block}.proj", dy_BTH, gradients)
        do_BATD = merge_heads_backward(self.config.heads, do_BTH)
        dqkv_BTC = split_heads_backward(*attention_backward(*inputs.qkv_BATD, do_BATD))
        dnorm1_BTH = self._linear_backward(f"{block}.qkv", dqkv_BTC, gradients)
        return dy_BTH + self._norm_backward(f"{block}.norm1", inputs.x_BTH, dnorm1_BTH, gradients)

    def _linear(self, name: str, x_BTN: Array) -> Array:
        x_MN = x_BTN.reshape(-1, x_BTN.shape[-1])
        y_MK = self.linears[name].forward(x_MN, self.parameters[f"{name}.weight"])
        return y_MK.reshape(*x_BTN.shape[:-1], -1)

    def _linear_backward(self, name: str, dy_BTK: Array, gradients: dict[str, Array]) -> Array:
        dy_MK = dy_BTK.reshape(-1, dy_BTK.shape[-1])
        dx_MN, gradients[f"{name}.weight"] = self.linears[name].backward(dy_MK)
        return dx_MN.reshape(*dy_BTK.shape[:-1], -1)

    def _norm(self, name: str, x_BTH: Array) -> Array:
        weight_H, bias_H = (self.parameters[f"{name}.{part}"] for part in ("weight", "bias"))
        return layer_norm(x_BTH, weight_H, bias_H)

    def _norm_backward(
        self, name: str, x_BTH: Array, dy_BTH: Array, gradients: dict[str, Array]
    ) -> Array:
        weight_H = self.parameters[f"{name}.weight"]
        dx_BTH, dweight_H, dbias_H = layer_norm_backward(x_BTH, weight_H, dy_BTH)
        gradients[f"{name}.weight"], gradients[f"{name}.bias"] = dweight_H, dbias_H
        return dx_BTH
