"""The kernels of attention: a block of qkv has groups of heads, of whole sequences or of parts.

Where blocks have a part of one sequence, the keys and values of the whole of it are read beside
them. A block of these has the two of every group side by side, (S, 2 G D), rotated.

Legend as in `layers_attention`: B sequences, T positions of queries, A heads, D elements of a head.
"""

from __future__ import annotations

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel
from primepar.reference.oracle.attention import (
    AttentionPart,
    attend_to,
    attend_to_backward,
    operands,
    operands_backward,
)
from primepar.reference.oracle.layers import Array


def keys(site: Site, inputs: StepInputs, x_MC: Array) -> Array:
    """Give the keys and values of these rows: (M, 2 G D)."""
    _, k_BGTD, v_BGTD = operands(_part(site), _sequences(site, x_MC))
    return _columns(k_BGTD, v_BGTD)


def forward(site: Site, inputs: StepInputs, x_MC: Array, kv_S: Array | None = None) -> Array:
    """Give the heads side by side: (M, H)."""
    part = _part(site)
    q_BATD, k_BGSD, v_BGSD = operands(part, _sequences(site, x_MC))
    if kv_S is not None:
        k_BGSD, v_BGSD = _heads(part, kv_S)
    o_BTH = attend_to(part, q_BATD, k_BGSD, v_BGSD, inputs.draw, site.name)
    return o_BTH.reshape(len(x_MC), -1)


def backward(
    site: Site,
    inputs: StepInputs,
    x_MC: Array,
    *others: Array,
) -> Array:
    """Give the gradient of the columns of qkv: (M, C).

    Reads dy where the block has whole sequences; else the keys and values of the sequence, dy, and
    the gradient of the block's own keys and values by all queries.
    """
    part = _part(site)
    if len(others) == 1:
        return _rows(operands_backward(part, *_gradients(site, inputs, x_MC, None, *others)))
    kv_S, dy_MH, dkv_M = others
    dq_BATD, _, _ = _gradients(site, inputs, x_MC, kv_S, dy_MH)
    return _rows(operands_backward(part, dq_BATD, *_heads(part, dkv_M)))


def backward_keys(site: Site, inputs: StepInputs, x_MC: Array, kv_S: Array, dy_MH: Array) -> Array:
    """Give the gradient of all keys and values of a sequence by these queries: (S, 2 G D)."""
    _, dk_BGSD, dv_BGSD = _gradients(site, inputs, x_MC, kv_S, dy_MH)
    return _columns(dk_BGSD, dv_BGSD)


def _gradients(
    site: Site, inputs: StepInputs, x_MC: Array, kv_S: Array | None, dy_MH: Array
) -> tuple[Array, Array, Array]:
    """Gradients of the queries, and of the keys and values by these queries."""
    part = _part(site)
    q_BATD, k_BGSD, v_BGSD = operands(part, _sequences(site, x_MC))
    if kv_S is not None:
        k_BGSD, v_BGSD = _heads(part, kv_S)
    do_BTH = _sequences(site, dy_MH)
    return attend_to_backward(part, q_BATD, k_BGSD, v_BGSD, do_BTH, inputs.draw, site.name)


def _part(site: Site) -> AttentionPart:
    """Which heads and queries of the model a block of qkv has."""
    config, ((row, _), (column, end)) = site.step.model, site.reads[0]
    group = (config.heads // config.kv_heads + 2) * config.head_dim
    sequence, position = divmod(row, site.step.positions)
    return AttentionPart(config, column // group, (end - column) // group, sequence, position)


def _sequences(site: Site, x_MC: Array) -> Array:
    """The rows sequence by sequence, or as the part of one: (B, T, C)."""
    positions = min(len(x_MC), site.step.positions)
    return x_MC.reshape(-1, positions, x_MC.shape[1])


def _rows(x_BTC: Array) -> Array:
    return x_BTC.reshape(-1, x_BTC.shape[-1])


def _columns(k_BGTD: Array, v_BGTD: Array) -> Array:
    """The key and value of every group side by side: (M, 2 G D)."""
    kv_BTG2D = np.stack([k_BGTD, v_BGTD], axis=2).transpose(0, 3, 1, 2, 4)
    batch, positions = kv_BTG2D.shape[:2]
    return kv_BTG2D.reshape(batch * positions, -1)


def _heads(part: AttentionPart, kv_S: Array) -> tuple[Array, Array]:
    """Keys and values (1, G, S, D) of a sequence or of a part of it."""
    kv_SG2D = kv_S.reshape(len(kv_S), part.count, 2, -1)
    k_GSD, v_GSD = kv_SG2D.transpose(2, 1, 0, 3)
    return k_GSD[None], v_GSD[None]


ATTENTION: dict[str, Kernel] = {
    "attention.keys": keys,
    "attention.forward": forward,
    "attention.backward": backward,
    "attention.backward.keys": backward_keys,
}
