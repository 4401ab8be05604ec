"""Takes out of (batch, length, ...) the tokens that a mask (batch, length) keeps, and back."""

from typing import Any

import torch


def index_first_axis(tokens: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Some tokens of (tokens, ...)."""
    return tokens[indices]


def unpad_input(states: torch.Tensor, mask: torch.Tensor, unused: Any = None) -> tuple[Any, ...]:
    """The tokens, their places, where each sequence begins, and the longest length."""
    lengths = mask.sum(1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return states.flatten(0, 1)[indices], indices, starts, int(lengths.max()), lengths


def pad_input(tokens: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Tokens at their places of (batch, length, ...), and zeros elsewhere."""
    whole = tokens.new_zeros(batch * length, *tokens.shape[1:])
    return whole.index_copy(0, indices, tokens).unflatten(0, (batch, length))
