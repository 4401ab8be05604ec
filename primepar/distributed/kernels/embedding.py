"""Embedding of tokens and positions; a block of the table has a part of the vocabulary.

Legend: R rows and C columns of a block, V rows of the table in it, T positions of a sequence.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from primepar.distributed.kernels.common import Line, counted, drop_out, widened
from primepar.operators import Site, StepInputs


def look_up(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    token_R: torch.Tensor,
    table_VC: torch.Tensor,
) -> None:
    """Write the rows of the tokens; zeros for a token whose row is not in the block."""
    vocabulary = site.reads[1][0]
    if _whole(site, vocabulary):
        torch.index_select(table_VC, 0, token_R, out=into_RC)
        return
    place_R, mine_R = _places(token_R, vocabulary)
    torch.index_select(table_VC, 0, place_R, out=into_RC).mul_(mine_R[:, None])


def look_up_gradient(
    site: Site,
    inputs: StepInputs,
    into_VC: torch.Tensor,
    token_R: torch.Tensor,
    dx_RC: torch.Tensor,
) -> None:
    """Write the gradient of a block of the table: for each token the sum of its rows."""
    vocabulary, dx_RC = site.writes[0], widened(dx_RC)
    into_VC.zero_()
    if _whole(site, vocabulary):
        into_VC.index_add_(0, token_R, dx_RC)
        return
    place_R, mine_R = _places(token_R, vocabulary)
    into_VC.index_add_(0, place_R, dx_RC * mine_R[:, None])


def _whole(site: Site, vocabulary: Line) -> bool:
    return vocabulary[0] == 0 and vocabulary[1] >= site.step.model.vocabulary


def _places(token_R: torch.Tensor, vocabulary: Line) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row of every token in the block, and whether the block has it."""
    place_R = token_R - vocabulary[0]
    inside_R = place_R.clamp(0, vocabulary[1] - vocabulary[0] - 1)
    return inside_R, place_R == inside_R


def forward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    table_TC: torch.Tensor | None = None,
) -> None:
    """Write the rows of the tokens plus those of their positions, after dropout."""
    if table_TC is None:
        backward(site, inputs, into_RC, x_RC)
        return
    position_R = _positions(site.writes[0], site.step.positions, x_RC.device)
    torch.index_select(table_TC, 0, position_R, out=into_RC).add_(x_RC)
    if inputs.draw is not None and site.step.model.embedding_dropout:
        backward(site, inputs, into_RC, into_RC)


def backward(site: Site, inputs: StepInputs, into_RC: torch.Tensor, dx_RC: torch.Tensor) -> None:
    """Write a block of the output, or of its gradient, after dropout."""
    probability, width = site.step.model.embedding_dropout, site.operator.K
    drop_out(into_RC, dx_RC, inputs.draw, probability, site.name, site.writes, width)


def position_gradient(
    site: Site, inputs: StepInputs, into_TC: torch.Tensor, dx_RC: torch.Tensor
) -> None:
    """Write the gradient of the position table, for the columns of the block."""
    dx_RC, positions = widened(dx_RC), site.step.positions
    first, end = site.reads[0][0]
    if first % positions == 0 and end % positions == 0:
        torch.sum(dx_RC.view(-1, positions, dx_RC.shape[1]), 0, out=into_TC[:positions])
        into_TC[positions:] = 0
        return
    into_TC.zero_().index_add_(0, _positions((first, end), positions, dx_RC.device), dx_RC)


@lru_cache(maxsize=64)
def _positions(rows: Line, positions: int, device: torch.device) -> torch.Tensor:
    """Return the position of each row in its sequence."""
    return counted(rows, device) % positions
