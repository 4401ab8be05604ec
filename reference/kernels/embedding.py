"""The kernels of the embedding: a block of the token table has a slice of the vocabulary."""

from __future__ import annotations

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel, dropped, inside, numbers
from primepar.reference.oracle.layers import Array, Tokens
from primepar.schedule.meaning import Box


def lookup(site: Site, inputs: StepInputs, tokens_M: Tokens, table_VH: Array) -> Array:
    """Give the rows of the tokens that this slice of the table has, zeros for the others."""
    here, tokens = inside(tokens_M, site.reads[1], 0)
    x_MH = np.zeros((len(tokens_M), table_VH.shape[1]), table_VH.dtype)
    x_MH[here] = table_VH[tokens]
    return x_MH


def forward(site: Site, inputs: StepInputs, x_MH: Array, position_TH: Array | None = None) -> Array:
    """Give the rows plus those of their positions, of which dropout keeps a part."""
    if position_TH is not None:
        x_MH = x_MH + position_TH[_positions(site, site.reads[0])]
    return backward(site, inputs, x_MH)


def backward(site: Site, inputs: StepInputs, dy_MH: Array) -> Array:
    """Give the gradient of the rows, dropped as they were."""
    probability = site.step.model.embedding_dropout
    return dropped(site, inputs, dy_MH, site.writes, "embedding", probability)


def token_gradient(site: Site, inputs: StepInputs, tokens_M: Tokens, dy_MH: Array) -> Array:
    """Give the gradient of this slice of the table by these rows: (V, H)."""
    (first, end), _ = site.writes
    here, tokens = inside(tokens_M, site.writes, 0)
    dtable_VH = np.zeros((end - first, dy_MH.shape[1]), dy_MH.dtype)
    np.add.at(dtable_VH, tokens, dy_MH[here])
    return dtable_VH


def position_gradient(site: Site, inputs: StepInputs, dy_MH: Array) -> Array:
    """Give the gradient of the table of positions by these rows: (context, H)."""
    (first, end), _ = site.writes
    dtable_TH = np.zeros((end - first, dy_MH.shape[1]), dy_MH.dtype)
    np.add.at(dtable_TH, _positions(site, site.reads[0]), dy_MH)
    return dtable_TH


def _positions(site: Site, rows: Box) -> Tokens:
    return numbers(rows, 0) % site.step.positions


EMBEDDING: dict[str, Kernel] = {
    "embedding.lookup": lookup,
    "embedding.forward": forward,
    "embedding.backward": backward,
    "token.gradient": token_gradient,
    "position.gradient": position_gradient,
}
