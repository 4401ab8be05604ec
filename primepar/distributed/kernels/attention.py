"""Causal attention on groups of heads, and on whole sequences or on parts of one.

Backward computes the shares again. Where a block has a part of a sequence, the program gathers its
keys and values, and sums their gradients.
Legend: B sequences, T positions of the block's queries in each, S positions of keys, G key/value
heads, Q query heads of each, A = G Q heads, D elements of one head, R = B T rows of a block, C
columns.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from primepar.distributed.kernels.attention_chunks import attend_in_chunks, gradients_in_chunks
from primepar.distributed.kernels.attention_part import AttentionBlock, Three
from primepar.models.dropout import Draw
from primepar.operators import Site, StepInputs


def keys(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Keys and values of the block's rows, `[R, G 2 D]`."""
    part = AttentionBlock.of(site)
    kv_BTG2D = part.turned(x_RC)[:, :, :, part.queries :]
    return kv_BTG2D.clone(memory_format=torch.contiguous_format).view(len(x_RC), -1)


def forward(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, kv_SC: torch.Tensor | None = None
) -> torch.Tensor:
    """The heads side by side, `[R, A D]`; `kv_SC` has the keys and values of whole sequences."""
    part = AttentionBlock.of(site)
    operands = part.operands(x_RC, kv_SC)
    plain = _plain(part, inputs.draw)
    o_BATD = _attend(*operands) if plain else attend_in_chunks(part, inputs.draw, operands)
    return o_BATD.transpose(1, 2).reshape(len(x_RC), -1)


def backward(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    """Gradient of the columns, of (x, dy) or, of a part of a sequence, (x, KV, dy, own dKV)."""
    part = AttentionBlock.of(site)
    if len(others) == 1:
        return part.gathered(*_gradients(part, inputs.draw, part.operands(x_RC, None), *others))
    kv_SC, dy_RC, dkv_RC = others
    dq_BATD, _, _ = _gradients(part, inputs.draw, part.operands(x_RC, kv_SC), dy_RC)
    return part.gathered(dq_BATD, *part.heads(dkv_RC))


def backward_keys(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, kv_SC: torch.Tensor, dy_RC: torch.Tensor
) -> torch.Tensor:
    """What the block's queries give to the gradients of all keys and values of their sequences."""
    part = AttentionBlock.of(site)
    operands = part.operands(x_RC, kv_SC)
    _, dk_BGSD, dv_BGSD = _gradients(part, inputs.draw, operands, dy_RC)
    dkv_BSG2D = dy_RC.new_zeros(len(dk_BGSD), part.positions, part.groups, 2, dk_BGSD.shape[-1])
    seen = dkv_BSG2D[:, : dk_BGSD.shape[2]]
    seen[:, :, :, 0], seen[:, :, :, 1] = dk_BGSD.transpose(1, 2), dv_BGSD.transpose(1, 2)
    return dkv_BSG2D.view(kv_SC.shape)


def _plain(part: AttentionBlock, draw: Draw | None) -> bool:
    """Whether torch has a fused function for it: causal, and nothing more."""
    drops = draw is not None and part.config.attention_dropout > 0
    return part.at[0] == 0 and part.config.positions != "alibi" and not drops


def _attend(q_BATD: torch.Tensor, k_BGTD: torch.Tensor, v_BGTD: torch.Tensor) -> torch.Tensor:
    """The heads of all queries of whole sequences, `[B, A, T, D]`."""
    queries = q_BATD.shape[1] // k_BGTD.shape[1]
    if queries > 1:
        k_BGTD, v_BGTD = (each.repeat_interleave(queries, dim=1) for each in (k_BGTD, v_BGTD))
    return functional.scaled_dot_product_attention(q_BATD, k_BGTD, v_BGTD, is_causal=True)


def _gradients(
    part: AttentionBlock, draw: Draw | None, operands: Three, dy_RC: torch.Tensor
) -> Three:
    """Gradients of queries, keys and values.

    On a CPU chunks take less time than torch's own backward after its forward, but in half
    precision.
    """
    q_BATD = operands[0]
    do_BTAD = dy_RC.reshape(len(q_BATD), -1, q_BATD.shape[1], q_BATD.shape[3])
    single = q_BATD.dtype in (torch.float32, torch.float64)
    if not _plain(part, draw) or (q_BATD.device.type == "cpu" and single):
        return gradients_in_chunks(part, draw, operands, do_BTAD.transpose(1, 2))
    leaves = [each.detach().requires_grad_() for each in operands]
    with torch.enable_grad():
        o_BATD = _attend(*leaves)
    dq_BATD, dk_BGTD, dv_BGTD = torch.autograd.grad(o_BATD, leaves, do_BTAD.transpose(1, 2))
    return dq_BATD, dk_BGTD, dv_BGTD
