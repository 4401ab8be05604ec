"""Checks of the transformer's arguments: parameters and tokens must fit its configuration.

Legend: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from primepar.errors import ConfigError
from primepar.models import ModelConfig
from primepar.reference.oracle.layers import Array, Tokens


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
