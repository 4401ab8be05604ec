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

from primepar.distributed.kernels.attention_chunks import attend_in_chunks, gradients_in_chunks
from primepar.distributed.kernels.attention_part import AttentionBlock, Three
from primepar.distributed.kernels.attention_short import POSITIONS, short_gradients
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
    plain = _plain(part, inputs.draw)
    o_BATD = _attend(*operands) if plain else attend_in_chunks(part, inputs.draw, operands)
    o_BTAD = o_BATD.transpose(1, 2)
    into_RC.view(o_BTAD.shape).copy_(o_BTAD)


def backward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    *others: torch.Tensor,
) -> None:
    """Write the gradient of the columns.

    `others` is dy for full sequences; for a part of a sequence KV, dy and the part's summed dKV.
    """
    part = AttentionBlock.of(site)
    if len(others) == 1:
        three = _gradients(part, inputs.draw, part.operands(x_RC, None), *others)
    else:
        kv_SC, dy_RC, dkv_RC = others
        dq_BATD, _, _ = _gradients(part, inputs.draw, part.operands(x_RC, kv_SC), dy_RC)
        three = dq_BATD, *part.heads(dkv_RC)
    part.gather(into_RC, *three)


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
    operands = part.operands(x_RC, kv_SC)
    _, dk_BGSD, dv_BGSD = _gradients(part, inputs.draw, operands, dy_RC)
    B, _, S, D = dk_BGSD.shape
    dkv_BSG2D = into_SC.view(B, part.positions, part.groups, 2, D)
    dkv_BSG2D[:, :S, :, 0] = dk_BGSD.transpose(1, 2)
    dkv_BSG2D[:, :S, :, 1] = dv_BGSD.transpose(1, 2)
    dkv_BSG2D[:, S:] = 0


def _plain(part: AttentionBlock, draw: Draw | None) -> bool:
    """Return whether torch has a fused function: causal, without ALiBi and dropout."""
    drops = draw is not None and part.config.attention_dropout > 0
    return part.query_positions[0] == 0 and part.config.positions != "alibi" and not drops


def _attend(q_BATD: torch.Tensor, k_BGTD: torch.Tensor, v_BGTD: torch.Tensor) -> torch.Tensor:
    """Return the heads of all queries of full sequences, `[B, A, T, D]`."""
    queries = q_BATD.shape[1] // k_BGTD.shape[1]
    if queries > 1:
        k_BGTD, v_BGTD = (x.repeat_interleave(queries, dim=1) for x in (k_BGTD, v_BGTD))
    return functional.scaled_dot_product_attention(q_BATD, k_BGTD, v_BGTD, is_causal=True)


def _gradients(
    part: AttentionBlock, draw: Draw | None, operands: Three, dy_RC: torch.Tensor
) -> Three:
    """Return the gradients of queries, keys and values.

    On a CPU, in single and double precision, matrix products take less time than torch's forward
    and backward: those of short sequences at once, of others in chunks.
    """
    q_BATD = operands[0]
    do_BTAD = dy_RC.reshape(len(q_BATD), -1, q_BATD.shape[1], q_BATD.shape[3])
    single = q_BATD.dtype in (torch.float32, torch.float64)
    plain, on_cpu = _plain(part, draw), q_BATD.device.type == "cpu" and single
    if plain and on_cpu and q_BATD.shape[2] == part.positions <= POSITIONS:
        return short_gradients(operands, do_BTAD.transpose(1, 2))
    if not plain or on_cpu:
        return gradients_in_chunks(part, draw, operands, do_BTAD.transpose(1, 2))
    leaves = [operand.detach().requires_grad_() for operand in operands]
    with torch.enable_grad():
        o_BATD = _attend(*leaves)
    dq_BATD, dk_BGTD, dv_BGTD = torch.autograd.grad(o_BATD, leaves, do_BTAD.transpose(1, 2))
    return dq_BATD, dk_BGTD, dv_BGTD
