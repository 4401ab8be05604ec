"""Causal attention on whole heads and whole sequences: nothing is sent.

Legend: B sequences, T positions, A heads, all of this rank; D elements of one head.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def attention(qkv: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Attend within each head of this rank: `[B, T, A 3 D]` to `[B, T, A D]`.

    The columns go head by head, each head's query, key and value side by side.
    """
    batch, positions, columns = qkv.shape
    qkv_BTA3D = qkv.view(batch, positions, columns // (3 * head_dim), 3, head_dim)
    q_BATD, k_BATD, v_BATD = qkv_BTA3D.permute(3, 0, 2, 1, 4)
    o_BATD = functional.scaled_dot_product_attention(q_BATD, k_BATD, v_BATD, is_causal=True)
    return o_BATD.transpose(1, 2).reshape(batch, positions, columns // 3)
