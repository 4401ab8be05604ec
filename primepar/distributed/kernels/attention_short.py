"""Gradients of causal attention on short sequences, whose scores are computed in one piece.

Masked scores are computed too: for some hundred positions that takes less time than chunks of
queries, which need twice as many calls.
Legend: N = B G groups of all sequences, Q query heads of each, A = G Q heads, T positions, D
elements of one head; R = Q T rows of a group.
"""

from __future__ import annotations

import torch

from primepar.distributed.kernels.attention_chunks import future
from primepar.distributed.kernels.attention_part import Three

POSITIONS = 128
"""Longest sequence, on a CPU."""
_SCORES = 1 << 17
"""Largest number of scores of several groups at once, which stay in a CPU's cache."""
_SOFTMAX_BACKWARD = torch.ops.aten._softmax_backward_data.out
"""f(dp, p, dim, dtype, grad_input=ds): the gradient of what the softmax `p` was taken of."""


def short_gradients(operands: Three, do_BATD: torch.Tensor) -> Three:
    """Return the gradients of queries `[B, A, T, D]`, keys and values `[B, G, T, D]`."""
    q_BATD, k_BGTD, v_BGTD = operands
    B, G, T, D = k_BGTD.shape
    N, rows = B * G, q_BATD.shape[1] // G * T
    q_NRD, do_NRD = (x.reshape(N, rows, D) for x in (q_BATD, do_BATD))
    k_NTD, v_NTD = (x.reshape(N, T, D) for x in (k_BGTD, v_BGTD))
    groups = max(1, min(N, _SCORES // (rows * T)))
    parts = [
        _gradients(*part)
        for part in zip(
            *(torch.split(x, groups) for x in (q_NRD, k_NTD, v_NTD, do_NRD)), strict=True
        )
    ]
    dq, dk, dv = (of[0] if len(of) == 1 else torch.cat(of) for of in zip(*parts, strict=True))
    return dq.view(q_BATD.shape), dk.view(k_BGTD.shape), dv.view(v_BGTD.shape)


def _gradients(
    q_NRD: torch.Tensor, k_NTD: torch.Tensor, v_NTD: torch.Tensor, do_NRD: torch.Tensor
) -> Three:
    """Return the gradients of some groups."""
    N, T, D = k_NTD.shape
    scores_NRT = torch.bmm(q_NRD * D**-0.5, k_NTD.transpose(1, 2))
    scores_NRT.view(N, -1, T, T).add_(future(T, q_NRD.dtype, q_NRD.device))
    p_NRT = torch.softmax(scores_NRT, 2)
    dv_NTD = torch.bmm(p_NRT.transpose(1, 2), do_NRD)
    dp_NRT = torch.bmm(do_NRD, v_NTD.transpose(1, 2), out=scores_NRT)
    ds_NRT = _SOFTMAX_BACKWARD(dp_NRT, p_NRT, 2, p_NRT.dtype, grad_input=dp_NRT).mul_(D**-0.5)
    return torch.bmm(ds_NRT, k_NTD), torch.bmm(ds_NRT.transpose(1, 2), q_NRD), dv_NTD
