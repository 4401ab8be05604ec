"""Embedding of tokens and positions; a block of the table has a part of the vocabulary.

Legend: R rows and C columns of a block, V rows of the table in it, T positions of a sequence.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional

from primepar.distributed.kernels.common import Line, counted, drop_out, widened
from primepar.operators import Site, StepInputs


def look_up(
    site: Site, inputs: StepInputs, token_R: torch.Tensor, table_VC: torch.Tensor
) -> torch.Tensor:
    """Return the rows of the tokens; zeros for a token whose row is not in the block."""
    vocabulary = site.reads[1][0]
    if _whole(site, vocabulary):
        return functional.embedding(token_R, table_VC)
    place_R, mine_R = _places(token_R, vocabulary)
    return functional.embedding(place_R, table_VC).mul_(mine_R[:, None])


def look_up_gradient(
    site: Site, inputs: StepInputs, token_R: torch.Tensor, dx_RC: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of a block of the table: for each token the sum of its rows."""
    vocabulary = site.writes[0]
    first, end = vocabulary
    dx_RC = widened(dx_RC)
    dtable_VC = dx_RC.new_zeros(end - first, dx_RC.shape[1])
    if _whole(site, vocabulary):
        return dtable_VC.index_add_(0, token_R, dx_RC)
    place_R, mine_R = _places(token_R, vocabulary)
    return dtable_VC.index_add_(0, place_R, dx_RC * mine_R[:, None])


def _whole(site: Site, vocabulary: Line) -> bool:
    return vocabulary[0] == 0 and vocabulary[1] >= site.step.model.vocabulary


def _places(token_R: torch.Tensor, vocabulary: Line) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row of every token in the block, and whether the block has it."""
    place_R = token_R - vocabulary[0]
    inside_R = place_R.clamp(0, vocabulary[1] - vocabulary[0] - 1)
    return inside_R, place_R == inside_R


def forward(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, table_TC: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the rows of the tokens plus those of their positions, after dropout."""
    if table_TC is not None:
        position_R = _positions(site.writes[0], site.step.positions, x_RC.device)
        x_RC = functional.embedding(position_R, table_TC).add_(x_RC)
        if inputs.draw is None or not site.step.model.embedding_dropout:
            return x_RC
    return backward(site, inputs, x_RC)


def backward(site: Site, inputs: StepInputs, dx_RC: torch.Tensor) -> torch.Tensor:
    """Apply dropout to a block of the output, or to its gradient."""
    probability, width = site.step.model.embedding_dropout, site.operator.K
    return drop_out(dx_RC, inputs.draw, probability, site.name, site.writes, width)


def position_gradient(site: Site, inputs: StepInputs, dx_RC: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the position table, for the columns of the block."""
    dx_RC, positions = widened(dx_RC), site.step.positions
    (first, end), (_, context) = site.reads[0][0], site.writes[0]
    dtable = dx_RC.new_zeros(context, dx_RC.shape[1])
    if first % positions == 0 and end % positions == 0:
        torch.sum(dx_RC.view(-1, positions, dx_RC.shape[1]), 0, out=dtable[:positions])
        return dtable
    return dtable.index_add_(0, _positions((first, end), positions, dx_RC.device), dx_RC)


@lru_cache(maxsize=64)
def _positions(rows: Line, positions: int, device: torch.device) -> torch.Tensor:
    """Return the position of each row in its sequence."""
    return counted(rows, device) % positions
