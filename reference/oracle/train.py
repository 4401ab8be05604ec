"""A training loop for the NumPy transformer: windows of a text, one update per batch.

Legend: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from primepar.errors import ConfigError, DataError
from primepar.reference.oracle.layers import Tokens
from primepar.reference.oracle.optimizers import Optimizer
from primepar.reference.oracle.transformer import Transformer


def windows(
    text: bytes, batch: int, context: int, seed: int = 0
) -> Iterator[tuple[Tokens, Tokens]]:
    """Give for ever (tokens_BT, targets_BT) of bytes, cut out of `text` at random places.

    Targets are the tokens one place further on. Raises `ConfigError` for a batch without windows
    and `DataError` if the text is shorter than one window and the byte after it.
    """
    if batch < 1:
        raise ConfigError(f"batch: expected 1 or more, got {batch}")
    if len(text) <= context:
        raise DataError(
            f"text: expected at least {context + 1} bytes (context={context} and one more), "
            f"got {len(text)}"
        )
    return _windows(np.frombuffer(text, dtype=np.uint8).astype(np.int64), batch, context, seed)


def _windows(
    tokens: Tokens, batch: int, context: int, seed: int
) -> Iterator[tuple[Tokens, Tokens]]:
    generator = np.random.default_rng(seed)
    while True:
        starts_B1 = generator.integers(0, len(tokens) - context, (batch, 1))
        places_BT = starts_B1 + np.arange(context)
        yield tokens[places_BT], tokens[places_BT + 1]


def train(
    model: Transformer, optimizer: Optimizer, batches: Iterable[tuple[Tokens, Tokens]]
) -> list[float]:
    """Update the model once per batch; give the loss of each batch before its update, in nats."""
    losses = []
    for tokens_BT, targets_BT in batches:
        loss, gradients = model.loss_and_gradients(tokens_BT, targets_BT)
        model.parameters = optimizer.step(model.parameters, gradients)
        losses.append(loss)
    return losses
