"""Floating-point operations of a model, without regard to how it is run."""

from __future__ import annotations

from math import prod

from primepar.models.config import ModelConfig


def flops_per_token(model: ModelConfig) -> int:
    """Return the model's operations of a training step for each token.

    A product of a row with an N x K matrix is 2 N K operations, and twice that backward. Scores
    and weighted sums of attention are 4 T D for each head, of all T positions (equation of PaLM:
    6 N + 12 L H Q T, with the parameters of the linear operators as N). Operations that
    recomputation repeats are not counted.
    """
    linear = sum(prod(shape) for shape in model.linear_shapes.values())
    attention = 2 * model.layers * model.heads * model.head_dim * model.context
    return 6 * (linear + attention)
