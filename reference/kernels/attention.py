"""Kernels of attention, whole and over blocks of keys by the online softmax.

A qkv block has groups of heads, of full sequences or of a part of one. If blocks have a part of a
sequence, the keys and values of the full sequence are an additional operand. Its blocks have
rotated key and value of every group next to each other, (S, 2 G D).

Over blocks of keys a state has for each head D numerators, the denominator, and m, the largest
score so far. The sums are those without their factor exp(m), see
`primepar.partition.attention_phases`. Attention is causal: the site gives the positions of the
rows. Example: one query has the scores 0 and 2 in a first block, 3 in a second one. The states have
denominators e^-2 + 1 (m = 2) and 1 (m = 3). Their sum has m = 3 and the denominator
(e^-2 + 1) e^-1 + 1 = e^-3 + e^-1 + 1.

Legend as in `oracle.attention`: B sequences, T positions of queries, S keys, A heads, D elements of
a head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from primepar.operators import Site, StepInputs, StepSettings
from primepar.reference.kernels.layers import Kernel
from primepar.reference.oracle.attention import (
    AttentionPart,
    attend_to,
    attend_to_backward,
    operands,
    operands_backward,
)
from primepar.reference.oracle.layers import Array


def attention_keys(site: Site, inputs: StepInputs, x_MC: Array) -> Array:
    """Return the keys and values of these rows: (M, 2 G D)."""
    _, k_BGTD, v_BGTD = operands(_part(site), _sequences(site, x_MC))
    return _columns(k_BGTD, v_BGTD)


def attention_forward(
    site: Site, inputs: StepInputs, x_MC: Array, kv_S: Array | None = None
) -> Array:
    """Return the heads, concatenated: (M, H)."""
    part = _part(site)
    q_BATD, k_BGSD, v_BGSD = operands(part, _sequences(site, x_MC))
    if kv_S is not None:
        k_BGSD, v_BGSD = _heads(part, kv_S)
    o_BTH = attend_to(part, q_BATD, k_BGSD, v_BGSD, inputs.draw, site.name)
    return o_BTH.reshape(len(x_MC), -1)


def attention_backward(
    site: Site,
    inputs: StepInputs,
    x_MC: Array,
    *others: Array,
) -> Array:
    """Return the gradient of the qkv columns: (M, C).

    `others` is dy if the block has full sequences. Else it is the keys and values of the sequence,
    dy, and the gradient of the block's keys and values, summed over all queries.
    """
    part = _part(site)
    if len(others) == 1:
        return _rows(operands_backward(part, *_gradients(site, inputs, x_MC, None, *others)))
    kv_S, dy_MH, dkv_M = others
    dq_BATD, _, _ = _gradients(site, inputs, x_MC, kv_S, dy_MH)
    return _rows(operands_backward(part, dq_BATD, *_heads(part, dkv_M)))


def attention_backward_keys(
    site: Site, inputs: StepInputs, x_MC: Array, kv_S: Array, dy_MH: Array
) -> Array:
    """Return these queries' terms in the gradient of all keys and values: (S, 2 G D)."""
    _, dk_BGSD, dv_BGSD = _gradients(site, inputs, x_MC, kv_S, dy_MH)
    return _columns(dk_BGSD, dv_BGSD)


def _gradients(
    site: Site, inputs: StepInputs, x_MC: Array, kv_S: Array | None, dy_MH: Array
) -> tuple[Array, Array, Array]:
    """Return gradients of the queries, and these queries' terms for keys and values."""
    part = _part(site)
    q_BATD, k_BGSD, v_BGSD = operands(part, _sequences(site, x_MC))
    if kv_S is not None:
        k_BGSD, v_BGSD = _heads(part, kv_S)
    do_BTH = _sequences(site, dy_MH)
    return attend_to_backward(part, q_BATD, k_BGSD, v_BGSD, do_BTH, inputs.draw, site.name)


def _part(site: Site) -> AttentionPart:
    """Return the heads and queries of the model that a qkv block has."""
    config, ((row, _), (column, end)) = site.step.model, site.reads[0]
    group = (config.heads // config.kv_heads + 2) * config.head_dim
    sequence, position = divmod(row, site.step.positions)
    return AttentionPart(config, column // group, (end - column) // group, sequence, position)


def _sequences(site: Site, x_MC: Array) -> Array:
    """Return the rows by sequence, or as a part of one sequence: (B, T, C)."""
    positions = min(len(x_MC), site.step.positions)
    return x_MC.reshape(-1, positions, x_MC.shape[1])


def _rows(x_BTC: Array) -> Array:
    return x_BTC.reshape(-1, x_BTC.shape[-1])


def _columns(k_BGTD: Array, v_BGTD: Array) -> Array:
    """Return key and value of every group next to each other: (M, 2 G D)."""
    kv_BTG2D = np.stack([k_BGTD, v_BGTD], axis=2).transpose(0, 3, 1, 2, 4)
    batch, positions = kv_BTG2D.shape[:2]
    return kv_BTG2D.reshape(batch * positions, -1)


def _heads(part: AttentionPart, kv_S: Array) -> tuple[Array, Array]:
    """Return keys and values (1, G, S, D) of a sequence or of a part of it."""
    kv_SG2D = kv_S.reshape(len(kv_S), part.count, 2, -1)
    k_GSD, v_GSD = kv_SG2D.transpose(2, 1, 0, 3)
    return k_GSD[None], v_GSD[None]


class OnlineState(NamedTuple):
    """Numerators, denominators and largest scores: (A, T, D), (A, T) and (A, T)."""

    numerator: Array
    denominator: Array
    largest: Array

    @classmethod
    def of(cls, block_TC: Array, size: int) -> OnlineState:
        """Read a block whose heads have `size` elements."""
        heads_ATE = _online_heads(block_TC, size + 2)
        return cls(heads_ATE[..., :-2], heads_ATE[..., -2], heads_ATE[..., -1])

    def block(self) -> Array:
        """Return the block of a state: (T, A (D + 2))."""
        sums = (self.numerator, self.denominator[..., None], self.largest[..., None])
        return _online_rows(np.concatenate(sums, axis=-1))


def added_states(settings: StepSettings, *blocks: Array) -> Array:
    """Return the sum of states, in units of exp of the largest m of all.

    A state without keys is zero, whatever its m.
    """
    # The header's example: factors e^-1 and 1. A state of zeros, which `alloc` makes, has m = 0 and
    # must not raise a largest score that is below 0: its factor is 0, and its m does not count.
    states = [OnlineState.of(block, settings.model.head_dim) for block in blocks]
    largest_AT = np.max(
        [np.where(state.denominator > 0, state.largest, -np.inf) for state in states], axis=0
    )
    largest_AT = np.where(np.isfinite(largest_AT), largest_AT, 0)
    factors = [
        np.where(state.denominator > 0, np.exp(np.minimum(state.largest - largest_AT, 0)), 0)
        for state in states
    ]
    pairs = list(zip(states, factors, strict=True))
    numerator_ATD = sum(state.numerator * factor[..., None] for state, factor in pairs)
    denominator_AT = sum(state.denominator * factor for state, factor in pairs)
    return OnlineState(
        np.asarray(numerator_ATD), np.asarray(denominator_AT), np.asarray(largest_AT)
    ).block()


def online_part(site: Site, inputs: StepInputs, q_TC: Array, kv_SC: Array) -> Array:
    """Return the state of these keys alone."""
    size = site.step.model.head_dim
    score_ATS = _scores(site, q_TC, kv_SC)
    largest_AT = score_ATS.max(axis=-1)  # -inf where all keys come after the query
    largest_AT = np.where(np.isfinite(largest_AT), largest_AT, 0)
    weight_ATS = np.exp(score_ATS - largest_AT[..., None])
    _, value_ASD = _keys_and_values(kv_SC, size)
    return OnlineState(weight_ATS @ value_ASD, weight_ATS.sum(axis=-1), largest_AT).block()


def online_output(site: Site, inputs: StepInputs, state_TC: Array) -> Array:
    """Return numerator / denominator of every head."""
    state = OnlineState.of(state_TC, site.step.model.head_dim)
    return _online_rows(state.numerator / state.denominator[..., None])


def online_delta(site: Site, inputs: StepInputs, o_TC: Array, do_TC: Array) -> Array:
    """Return the sum of o do over the elements of every head: (T, A)."""
    size = site.step.model.head_dim
    return np.asarray(_online_heads(o_TC * do_TC, size).sum(axis=-1).T)


def online_query(site: Site, inputs: StepInputs, *blocks: Array) -> Array:
    """Return these keys' terms in the gradient of the queries."""
    dscore_ATS, _ = _online_gradients(site, *blocks)
    key_ASD, _ = _keys_and_values(blocks[1], site.step.model.head_dim)
    return _online_rows(dscore_ATS @ key_ASD)


def online_keys(site: Site, inputs: StepInputs, *blocks: Array) -> Array:
    """Return these queries' terms in the gradient of the keys and values."""
    size = site.step.model.head_dim
    dscore_ATS, weight_ATS = _online_gradients(site, *blocks)
    dkey_ASD = dscore_ATS.swapaxes(-1, -2) @ _online_heads(blocks[0], size)
    dvalue_ASD = weight_ATS.swapaxes(-1, -2) @ _online_heads(blocks[4], size)
    return _online_rows(np.concatenate([dkey_ASD, dvalue_ASD], axis=-1))


def _online_gradients(
    site: Site, q_TC: Array, kv_SC: Array, state_TC: Array, delta_TA: Array, do_TC: Array
) -> tuple[Array, Array]:
    """Return the gradients of the scores without scale, and the weights: both (A, T, S)."""
    size = site.step.model.head_dim
    state = OnlineState.of(state_TC, size)
    shifted_ATS = np.exp(_scores(site, q_TC, kv_SC) - state.largest[..., None])
    weight_ATS = shifted_ATS / state.denominator[..., None]
    _, value_ASD = _keys_and_values(kv_SC, size)
    dweight_ATS = _online_heads(do_TC, size) @ value_ASD.swapaxes(-1, -2)
    # As in the oracle; delta, the part of a row along its weights, is of all keys, not of these.
    dscore_ATS = weight_ATS * (dweight_ATS - delta_TA.T[..., None]) / math.sqrt(size)
    return dscore_ATS, weight_ATS


def _scores(site: Site, q_TC: Array, kv_SC: Array) -> Array:
    """Return the scores (A, T, S): -inf where the key comes after the query."""
    size = site.step.model.head_dim
    key_ASD, _ = _keys_and_values(kv_SC, size)
    score_ATS = _online_heads(q_TC, size) @ key_ASD.swapaxes(-1, -2) / math.sqrt(size)
    (first_query, _), (first_key, _) = site.reads[0][0], site.reads[1][0]
    queries_T1 = first_query + np.arange(len(q_TC))[:, None]
    score_ATS[:, first_key + np.arange(len(kv_SC)) > queries_T1] = -np.inf
    return np.asarray(score_ATS)


def _keys_and_values(kv_SC: Array, size: int) -> tuple[Array, Array]:
    """Return the keys and values of every head: (A, S, D) each."""
    heads_ASE = _online_heads(kv_SC, 2 * size)
    return heads_ASE[..., :size], heads_ASE[..., size:]


def _online_heads(x_TC: Array, size: int) -> Array:
    """Return the rows of every head: (A, T, size)."""
    return x_TC.reshape(len(x_TC), -1, size).swapaxes(0, 1)


def _online_rows(x_ATD: Array) -> Array:
    """Return the heads of every row next to one another: (T, A D)."""
    return x_ATD.swapaxes(0, 1).reshape(x_ATD.shape[1], -1)


ATTENTION: dict[str, Kernel] = {
    "attention.keys": attention_keys,
    "attention.forward": attention_forward,
    "attention.backward": attention_backward,
    "attention.backward.keys": attention_backward_keys,
    "online.part": online_part,
    "online.output": online_output,
    "online.delta": online_delta,
    "online.query": online_query,
    "online.keys": online_keys,
}
