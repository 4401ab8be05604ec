"""Causal attention on groups of heads, on full sequences or on a part of one sequence.

Backward recomputes the softmax. If a block has a part of a sequence, the program all-gathers the
keys and values, and reduce-scatters their gradients.
Legend: B sequences, T positions of the block's queries in each, S positions of keys, G key/value
heads, Q query heads of each, A = G Q heads, D elements of one head, R = B T rows of a block, C
columns.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from primepar.distributed.kernels.attention_chunks import (
    Gradients,
    attend_in_chunks,
    gradients_in_chunks,
)
from primepar.distributed.kernels.attention_part import AttentionBlock, Three
from primepar.models.dropout import Draw
from primepar.operators import Site, StepInputs


def keys(site: Site, inputs: StepInputs, into_RC: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write keys and values of the block's rows, `[R, G 2 D]`."""
    part = AttentionBlock.of(site)
    kv_BTG2D = part.turned(x_RC)[:, :, :, part.queries :]
    into_RC.view(kv_BTG2D.shape).copy_(kv_BTG2D)


def forward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    kv_SC: torch.Tensor | None = None,
) -> None:
    """Write the heads, concatenated, `[R, A D]`; `kv_SC`: keys and values of full sequences."""
    part = AttentionBlock.of(site)
    operands = part.operands(x_RC, kv_SC)
    into_BGQTD = part.by_group(into_RC)
    if _plain(part, inputs.draw):
        into_BGQTD.copy_(_attend(*operands).view(into_BGQTD.shape))
    else:
        attend_in_chunks(part, inputs.draw, operands, into_BGQTD)


def backward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    *others: torch.Tensor,
) -> None:
    """Write the gradient of the columns; `into_RC` may be `x_RC`.

    `others` is dy for full sequences; for a part of a sequence KV, dy and the part's summed dKV.
    """
    part = AttentionBlock.of(site)
    dq_BGQTD, dk_BGTD, dv_BGTD = part.split(into_RC)
    if len(others) == 1:
        operands = part.operands(x_RC, None)
        into = Gradients(dq_BGQTD, dk_BGTD, dv_BGTD)
        _write_gradients(part, inputs.draw, operands, *others, into)
    else:
        kv_SC, dy_RC, dkv_RC = others
        operands = part.operands(x_RC, kv_SC)
        _write_gradients(part, inputs.draw, operands, dy_RC, Gradients(dq_BGQTD, None, None))
        for into_BGTD, sum_BGTD in zip((dk_BGTD, dv_BGTD), part.heads(dkv_RC), strict=True):
            into_BGTD.copy_(sum_BGTD)
    part.turn_back(into_RC)


def backward_keys(
    site: Site,
    inputs: StepInputs,
    into_SC: torch.Tensor,
    x_RC: torch.Tensor,
    kv_SC: torch.Tensor,
    dy_RC: torch.Tensor,
) -> None:
    """Write the terms of the block's queries in the gradients of all their keys and values."""
    part = AttentionBlock.of(site)
    end = part.query_positions[1]
    dk_BGSD, dv_BGSD = part.heads(into_SC, part.positions)
    into = Gradients(None, dk_BGSD[:, :, :end], dv_BGSD[:, :, :end])
    _write_gradients(part, inputs.draw, part.operands(x_RC, kv_SC), dy_RC, into)
    dk_BGSD[:, :, end:] = dv_BGSD[:, :, end:] = 0


def _plain(part: AttentionBlock, draw: Draw | None) -> bool:
    """Return whether torch has a fused function: causal, without ALiBi and dropout."""
    drops = draw is not None and part.config.attention_dropout > 0
    return part.query_positions[0] == 0 and part.config.positions != "alibi" and not drops


def _attend(q_BGQTD: torch.Tensor, k_BGTD: torch.Tensor, v_BGTD: torch.Tensor) -> torch.Tensor:
    """Return the heads of all queries of full sequences, `[B, A, T, D]`."""
    queries = q_BGQTD.shape[2]
    if queries > 1:
        k_BGTD, v_BGTD = (x.repeat_interleave(queries, dim=1) for x in (k_BGTD, v_BGTD))
    q_BATD = q_BGQTD.flatten(1, 2)
    return functional.scaled_dot_product_attention(q_BATD, k_BGTD, v_BGTD, is_causal=True)


def _write_gradients(
    part: AttentionBlock,
    draw: Draw | None,
    operands: Three,
    dy_RC: torch.Tensor,
    into: Gradients,
) -> None:
    """Write the gradients of queries, keys and values that are wanted.

    On a CPU, in single and double precision, chunks take less time than torch's forward and
    backward.
    """
    do_BGQTD, q_BGQTD = part.by_group(dy_RC), operands[0]
    single = q_BGQTD.dtype in (torch.float32, torch.float64)
    if not _plain(part, draw) or (q_BGQTD.device.type == "cpu" and single):
        gradients_in_chunks(part, draw, operands, do_BGQTD, into)
        return
    # Not `detach`: its version is that of all memory that the block is a part of, and a receive
    # into another part of it would look to autograd like a change of the operand.
    leaves = [operand.data.requires_grad_() for operand in operands]
    with torch.enable_grad():
        o_BATD = _attend(*leaves)
    gradients = torch.autograd.grad(o_BATD, leaves, do_BGQTD.flatten(1, 2))
    for whole, gradient in zip(into, gradients, strict=True):
        if whole is not None:
            whole.copy_(gradient)
