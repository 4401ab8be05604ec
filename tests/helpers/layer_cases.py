"""Every operator of the transformer with its backward, and the same out of torch.

Legend: B batch, T positions, H hidden, A heads, D elements of one head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from primepar.models import ModelConfig
from primepar.reference.oracle import attention as layers_attention
from primepar.reference.oracle import layers
from primepar.reference.oracle import linear as dense
from primepar.reference.oracle.layers import Array

B, T, A, D, V = 2, 4, 3, 2, 5
H = A * D
TOKENS_BT = np.array([[0, 4, 4, 1], [2, 0, 3, 4]])
THETA = 100.0
LLAMA = ModelConfig.of(
    "llama", layers=1, hidden=8, heads=4, kv_heads=2, head_dim=D, context=T, vocabulary=V,
    rope_theta=THETA,
)  # fmt: skip
PART = layers_attention.AttentionPart.every(LLAMA)
BLOOM = ModelConfig.of("bloom", layers=1, hidden=6, heads=A, context=T, vocabulary=V)
BIAS_ATS = layers_attention.alibi(layers_attention.AttentionPart.every(BLOOM), T, T)
KEPT_BATS = np.random.default_rng(0).random((B, A, T, T)) < 0.75
DROPPED: dict[str, Any] = {"bias_ATS": BIAS_ATS, "kept_BATS": KEPT_BATS, "probability": 0.25}


@dataclass(frozen=True)
class Case:
    """One operator: its forward and its backward over arrays of `shapes`, and torch's forward."""

    forward: Callable[..., Any]
    backward: Callable[..., tuple[Array, ...]]
    shapes: tuple[tuple[int, ...], ...]
    torch: Callable[..., Any]


def torch_heads(torch: Any, qkv_BTC: Any) -> Any:
    """Columns of head 0 first; within a head query, key, value."""
    starts = [range(part * D, 3 * H, 3 * D) for part in range(3)]
    return torch.stack(
        [torch.stack([qkv_BTC[..., i : i + D] for i in part], dim=1) for part in starts]
    )


def torch_attention(torch: Any, *qkv_BATD: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(*qkv_BATD, is_causal=True)


def torch_cross_entropy(torch: Any, logits_BTV: Any) -> Any:
    targets = torch.tensor(TOKENS_BT).flatten()
    return torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), targets)


def torch_attend(torch: Any, qkv_BTC: Any) -> Any:
    """Columns of a group: its two queries, its key, its value; turned, and two share a key."""
    q_BTGRD, k_BTGD, v_BTGD = qkv_BTC.reshape(B, T, 2, 4, D).split((2, 1, 1), dim=3)
    q_BATD = q_BTGRD.flatten(2, 3).transpose(1, 2)
    k_BGTD, v_BGTD = (x.squeeze(3).transpose(1, 2) for x in (k_BTGD, v_BTGD))
    q_BATD, k_BGTD = torch_rotary(torch, q_BATD), torch_rotary(torch, k_BGTD)
    k_BATD, v_BATD = (x.repeat_interleave(2, dim=1) for x in (k_BGTD, v_BGTD))
    return torch_attention(torch, q_BATD, k_BATD, v_BATD).transpose(1, 2).flatten(2)


def torch_rotary(torch: Any, x_BATD: Any) -> Any:
    """Pairs of elements as complex numbers, each times exp(i angle)."""
    first, second = x_BATD.chunk(2, dim=-1)
    angles = torch.arange(T)[:, None] * THETA ** (-torch.arange(0, D, 2).double() / D)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def torch_dropped_attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    score = q @ k.transpose(-1, -2) / D**0.5 + torch.tensor(BIAS_ATS)
    score = score.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    return (score.softmax(dim=-1) * torch.tensor(KEPT_BATS) / (1 - 0.25)) @ v


def torch_gated(torch: Any, x: Any) -> Any:
    return torch.nn.functional.silu(x[..., 0::2]) * x[..., 1::2]


CASES = {
    "embedding": Case(
        lambda token, position: layers.embedding(TOKENS_BT, token, position),
        lambda token, position, d: layers.embedding_backward(TOKENS_BT, token, position, d),
        ((V, H), (T + 1, H)),
        lambda torch, token, position: token[TOKENS_BT] + position[:T],
    ),
    "layer_norm": Case(
        layers.layer_norm,
        lambda x, weight, bias, d: layers.layer_norm_backward(x, weight, d),
        ((B, T, H), (H,), (H,)),
        lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (H,), w, b, 1e-5),
    ),
    "rms_norm": Case(
        layers.rms_norm,
        lambda x, weight, d: layers.rms_norm_backward(x, weight, d),
        ((B, T, H), (H,)),
        lambda torch, x, w: torch.nn.functional.rms_norm(x, (H,), w, 1e-5),
    ),
    "linear": Case(
        dense.linear,
        dense.linear_backward,
        ((T, H), (H, V)),
        lambda torch, x, weight: torch.nn.functional.linear(x, weight.T),
    ),
    "split_heads": Case(
        lambda qkv: np.stack(layers_attention.split_heads(qkv, A)),
        lambda qkv, d: (layers_attention.split_heads_backward(*d),),
        ((B, T, 3 * H),),
        torch_heads,
    ),
    "attention": Case(
        layers_attention.attention,
        layers_attention.attention_backward,
        ((B, A, T, D),) * 3,
        torch_attention,
    ),
    "merge_heads": Case(
        layers_attention.merge_heads,
        lambda o, d: (layers_attention.merge_heads_backward(A, d),),
        ((B, A, T, D),),
        lambda torch, o: torch.cat(o.unbind(1), dim=-1),
    ),
    "gelu": Case(
        layers.gelu,
        lambda x, d: (layers.gelu_backward(x, d),),
        ((B, T, H),),
        lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "gelu_exact": Case(
        layers.gelu_exact,
        lambda x, d: (layers.gelu_exact_backward(x, d),),
        ((B, T, H),),
        lambda torch, x: torch.nn.functional.gelu(x),
    ),
    "relu": Case(
        layers.relu,
        lambda x, d: (layers.relu_backward(x, d),),
        ((B, T, H),),
        lambda torch, x: torch.relu(x),
    ),
    "silu": Case(
        layers.silu,
        lambda x, d: (layers.silu_backward(x, d),),
        ((B, T, H),),
        lambda torch, x: torch.nn.functional.silu(x),
    ),
    "gated": Case(
        lambda x: layers.activation(LLAMA, x),
        lambda x, d: (layers.activation_backward(LLAMA, x, d),),
        ((B, T, H),),
        torch_gated,
    ),
    "rotary": Case(
        lambda x: layers_attention.rotary(x, THETA),
        lambda x, d: (layers_attention.rotary_backward(THETA, d),),
        ((B, A, T, D),),
        torch_rotary,
    ),
    "attend": Case(
        lambda qkv: layers_attention.attend(PART, qkv),
        lambda qkv, d: (layers_attention.attend_backward(PART, qkv, d),),
        ((B, T, 8 * D),),
        torch_attend,
    ),
    "attention with a bias and dropout": Case(
        lambda *qkv: layers_attention.attention(*qkv, **DROPPED),
        lambda *qkvd: layers_attention.attention_backward(*qkvd, **DROPPED),
        ((B, A, T, D),) * 3,
        torch_dropped_attention,
    ),
    "embedding without positions": Case(
        lambda token: layers.embedding(TOKENS_BT, token),
        lambda token, d: layers.embedding_backward(TOKENS_BT, token, None, d),
        ((V, H),),
        lambda torch, token: token[TOKENS_BT],
    ),
    "cross_entropy": Case(
        lambda logits: layers.cross_entropy(logits, TOKENS_BT),
        lambda logits, d: (d * layers.cross_entropy_backward(logits, TOKENS_BT),),
        ((B, T, V),),
        torch_cross_entropy,
    ),
}
