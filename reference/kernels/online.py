"""The kernels of attention over blocks of keys: the online softmax, and its gradients.

A state has for each head D numerators, the denominator, and m, the largest score so far. The sums
are those without their factor exp(m), see `primepar.partition.attention_phases`. Attention is
causal: the site gives the positions of the rows.

Legend: T queries, S keys of the blocks, A heads, D elements of a head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from primepar.operators import Site, StepInputs, StepSettings
from primepar.reference.kernels.extents import Kernel
from primepar.reference.oracle.layers import Array


class OnlineState(NamedTuple):
    """Numerators, denominators and largest scores: (A, T, D), (A, T) and (A, T)."""

    numerator: Array
    denominator: Array
    largest: Array

    @classmethod
    def of(cls, block_TC: Array, size: int) -> OnlineState:
        """Read a block whose heads have `size` elements."""
        heads_ATE = _heads(block_TC, size + 2)
        return cls(heads_ATE[..., :-2], heads_ATE[..., -2], heads_ATE[..., -1])

    def block(self) -> Array:
        """Return the block of a state: (T, A (D + 2))."""
        sums = (self.numerator, self.denominator[..., None], self.largest[..., None])
        return _rows(np.concatenate(sums, axis=-1))


def added_states(settings: StepSettings, *blocks: Array) -> Array:
    """Return the sum of states, in units of exp of the largest m of all.

    A state without keys is zero, whatever its m.
    """
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


def part(site: Site, inputs: StepInputs, q_TC: Array, kv_SC: Array) -> Array:
    """Return the state of these keys alone."""
    size = site.step.model.head_dim
    score_ATS = _scores(site, q_TC, kv_SC)
    largest_AT = score_ATS.max(axis=-1)
    largest_AT = np.where(np.isfinite(largest_AT), largest_AT, 0)
    weight_ATS = np.exp(score_ATS - largest_AT[..., None])
    _, value_ASD = _keys_and_values(kv_SC, size)
    return OnlineState(weight_ATS @ value_ASD, weight_ATS.sum(axis=-1), largest_AT).block()


def output(site: Site, inputs: StepInputs, state_TC: Array) -> Array:
    """Return numerator / denominator of every head."""
    state = OnlineState.of(state_TC, site.step.model.head_dim)
    return _rows(state.numerator / state.denominator[..., None])


def delta(site: Site, inputs: StepInputs, o_TC: Array, do_TC: Array) -> Array:
    """Return the sum of o do over the elements of every head: (T, A)."""
    size = site.step.model.head_dim
    return np.asarray(_heads(o_TC * do_TC, size).sum(axis=-1).T)


def query(site: Site, inputs: StepInputs, *blocks: Array) -> Array:
    """Return these keys' terms in the gradient of the queries."""
    dscore_ATS, _ = _gradients(site, *blocks)
    key_ASD, _ = _keys_and_values(blocks[1], site.step.model.head_dim)
    return _rows(dscore_ATS @ key_ASD)


def keys(site: Site, inputs: StepInputs, *blocks: Array) -> Array:
    """Return these queries' terms in the gradient of the keys and values."""
    size = site.step.model.head_dim
    dscore_ATS, weight_ATS = _gradients(site, *blocks)
    dkey_ASD = dscore_ATS.swapaxes(-1, -2) @ _heads(blocks[0], size)
    dvalue_ASD = weight_ATS.swapaxes(-1, -2) @ _heads(blocks[4], size)
    return _rows(np.concatenate([dkey_ASD, dvalue_ASD], axis=-1))


def _gradients(
    site: Site, q_TC: Array, kv_SC: Array, state_TC: Array, delta_TA: Array, do_TC: Array
) -> tuple[Array, Array]:
    """Return the gradients of the scores without scale, and the weights: both (A, T, S)."""
    size = site.step.model.head_dim
    state = OnlineState.of(state_TC, size)
    shifted_ATS = np.exp(_scores(site, q_TC, kv_SC) - state.largest[..., None])
    weight_ATS = shifted_ATS / state.denominator[..., None]
    _, value_ASD = _keys_and_values(kv_SC, size)
    dweight_ATS = _heads(do_TC, size) @ value_ASD.swapaxes(-1, -2)
    dscore_ATS = weight_ATS * (dweight_ATS - delta_TA.T[..., None]) / math.sqrt(size)
    return dscore_ATS, weight_ATS


def _scores(site: Site, q_TC: Array, kv_SC: Array) -> Array:
    """Return the scores (A, T, S): -inf where the key comes after the query."""
    size = site.step.model.head_dim
    key_ASD, _ = _keys_and_values(kv_SC, size)
    score_ATS = _heads(q_TC, size) @ key_ASD.swapaxes(-1, -2) / math.sqrt(size)
    (first_query, _), (first_key, _) = site.reads[0][0], site.reads[1][0]
    queries_T1 = first_query + np.arange(len(q_TC))[:, None]
    score_ATS[:, first_key + np.arange(len(kv_SC)) > queries_T1] = -np.inf
    return np.asarray(score_ATS)


def _keys_and_values(kv_SC: Array, size: int) -> tuple[Array, Array]:
    """Return the keys and values of every head: (A, S, D) each."""
    heads_ASE = _heads(kv_SC, 2 * size)
    return heads_ASE[..., :size], heads_ASE[..., size:]


def _heads(x_TC: Array, size: int) -> Array:
    """Return the rows of every head: (A, T, size)."""
    return x_TC.reshape(len(x_TC), -1, size).swapaxes(0, 1)


def _rows(x_ATD: Array) -> Array:
    """Return the heads of every row next to one another: (T, A D)."""
    return x_ATD.swapaxes(0, 1).reshape(x_ATD.shape[1], -1)


ONLINE: dict[str, Kernel] = {
    "online.part": part,
    "online.output": output,
    "online.delta": delta,
    "online.query": query,
    "online.keys": keys,
}
