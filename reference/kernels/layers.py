"""Kernels of every operator except attention: linear, norm, activation, addition, embedding, loss.

A norm has its statistics from the columns of one block. A layer norm has mean and variance of P
equal parts of a row, (2, M, P); an RMS norm has the sum of squares, (M). Example: a row has 2
blocks, of means 1 and 3 and variances 0 and 2. Its variance is the mean of the variances, 1, plus
the variance of the means, 1.

A block of a token table or of the logits has a slice of the vocabulary, and the kernel makes only
the terms of that slice. The padding of the vocabulary has probability 0, and so no gradient. In a
regression a dim of length one in front numbers the worker; a model that all share has none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.emulator.arithmetic import multiply
from primepar.reference.oracle.layers import (
    Array,
    Tokens,
    activation,
    activation_backward,
    dropout,
    kept_elements,
)
from primepar.schedule.meaning import Box

Kernel = Callable[..., Array]


def numbers(box: Box, dim: int) -> Tokens:
    """Return the element numbers, in the full tensor, of a block along a dim."""
    return np.arange(*box[dim])


def inside(numbers_M: Tokens, box: Box, dim: int) -> tuple[Tokens, Tokens]:
    """Return the positions of numbers that are in a block along a dim, and their elements in it."""
    first, end = box[dim]
    # Tokens 7, 2, 5 and rows 4 to 8 of the table: positions 0 and 2 are here, as elements 3 and 1.
    (here,) = np.nonzero((numbers_M >= first) & (numbers_M < end))
    return here, numbers_M[here] - first


def dropped(
    site: Site, inputs: StepInputs, x_MK: Array, box: Box, operator: str, probability: float
) -> Array:
    """Apply dropout to a block of an operator's output, or in backward to its gradient."""
    rows_M, columns_K = numbers(box, 0), numbers(box, 1)
    width = site.operator.K
    kept_MK = kept_elements(inputs.draw, probability, operator, rows_M, columns_K, width)
    return dropout(x_MK, kept_MK, probability)


def product(site: Site, inputs: StepInputs, *blocks: Array) -> Array:
    """Return the product of two blocks. Raises `ValueError` for shapes that do not fit."""
    return multiply(site.phase, blocks)


def bias_forward(site: Site, inputs: StepInputs, y_MK: Array, bias_K: Array) -> Array:
    """Return the product plus the bias."""
    return y_MK + bias_K


def bias_gradient(site: Site, inputs: StepInputs, dy_MK: Array) -> Array:
    """Return these rows' terms in the gradient of a bias: (K)."""
    return np.asarray(dy_MK.sum(axis=0))


def norm_moments(site: Site, inputs: StepInputs, x_MH: Array) -> Array:
    """Return mean and variance of every row: (2, M, 1)."""
    return np.stack([x_MH.mean(axis=1), x_MH.var(axis=1)])[..., None]


def norm_square(site: Site, inputs: StepInputs, x_MH: Array) -> Array:
    """Return the sum of the squares of every row: (M)."""
    return np.asarray((x_MH**2).sum(axis=1))


def norm_normalize(site: Site, inputs: StepInputs, x_MH: Array, statistics: Array) -> Array:
    """Return every row, minus its mean in a layer norm, divided by its deviation."""
    if statistics.ndim == 3:
        x_MH = x_MH - statistics[0].mean(axis=1, keepdims=True)
    return x_MH / _root(site, statistics)


def norm_forward(
    site: Site, inputs: StepInputs, normed_MH: Array, weight_H: Array, bias_H: Array | None = None
) -> Array:
    """Return the normalized rows times weight plus bias."""
    scaled_MH = normed_MH * weight_H
    return scaled_MH if bias_H is None else scaled_MH + bias_H


def norm_gradient(site: Site, inputs: StepInputs, dy_MH: Array, normed_MH: Array) -> Array:
    """Return these rows' terms in the gradient of the weight: (H)."""
    return np.asarray((dy_MH * normed_MH).sum(axis=0))


def norm_backward_sums(
    site: Site, inputs: StepInputs, dy_MH: Array, weight_H: Array, normed_MH: Array
) -> Array:
    """Return the sums of every row for backward: (2, M); for RMS norm (1, M).

    They are the sum of dnormed * normed and, for a layer norm, the sum of dnormed.
    """
    dnormed_MH = dy_MH * weight_H
    sums = [(dnormed_MH * normed_MH).sum(axis=1)]
    if _centred(site.writes[0]):
        sums.append(dnormed_MH.sum(axis=1))
    return np.stack(sums)


def norm_backward(
    site: Site,
    inputs: StepInputs,
    dy_MH: Array,
    weight_H: Array,
    normed_MH: Array,
    statistics: Array,
    sums_2M: Array,
) -> Array:
    """Return the gradient of the rows."""
    means_2M1 = sums_2M[..., None] / site.step.model.hidden
    dx_MH: Array = dy_MH * weight_H - normed_MH * means_2M1[0]
    if _centred(site.reads[-1][0]):
        dx_MH = dx_MH - means_2M1[1]
    return dx_MH / _root(site, statistics)


def _centred(rows: tuple[int, int]) -> bool:
    """Return whether the number of sums is that of a layer norm, two; an RMS norm has one."""
    first, end = rows
    return end - first == 2


def _root(site: Site, statistics: Array) -> Array:
    model = site.step.model
    if statistics.ndim == 3:  # a layer norm; the header's example is (0 + 2) / 2 + 1
        mean_MP, variance_MP = statistics
        variance_M = variance_MP.mean(axis=1) + mean_MP.var(axis=1)
    else:
        variance_M = statistics / model.hidden
    return np.asarray(np.sqrt(variance_M + model.epsilon))[:, None]


def row_statistics(site: Site, inputs: StepInputs, x_MH: Array) -> Array:
    """Return mean, and one over the deviation, of every whole row: (2, M)."""
    variance_M = x_MH.var(axis=1) + site.step.model.epsilon
    return np.stack([x_MH.mean(axis=1), 1 / np.sqrt(variance_M)])


def normalize_rows(site: Site, inputs: StepInputs, x_MH: Array) -> Array:
    """Return every whole row, minus its mean, divided by its deviation."""
    mean_M1, scale_M1 = row_statistics(site, inputs, x_MH)[..., None]
    return np.asarray((x_MH - mean_M1) * scale_M1)


def layer_norm_backward(
    site: Site,
    inputs: StepInputs,
    dy_MH: Array,
    weight_H: Array,
    normed_MH: Array,
    statistics_2M: Array,
) -> Array:
    """Return the gradient of whole rows."""
    dnormed_MH = dy_MH * weight_H
    along_M1 = (dnormed_MH * normed_MH).mean(axis=1, keepdims=True)
    dx_MH = dnormed_MH - dnormed_MH.mean(axis=1, keepdims=True) - normed_MH * along_M1
    return np.asarray(dx_MH * statistics_2M[1][:, None])


def activation_of(site: Site, inputs: StepInputs, x_MK: Array) -> Array:
    """Return act(x), or act(gate) * up for columns in pairs (gate, up)."""
    return activation(site.step.model, x_MK)


def activation_gradient(site: Site, inputs: StepInputs, x_MK: Array, dy_MF: Array) -> Array:
    """Return the gradient of the input."""
    return activation_backward(site.step.model, x_MK, dy_MF)


def add(site: Site, inputs: StepInputs, stream_MH: Array, branch_MH: Array) -> Array:
    """Return the residual stream plus the branch after dropout."""
    return stream_MH + add_gradient(site, inputs, branch_MH)


def add_gradient(site: Site, inputs: StepInputs, dy_MH: Array) -> Array:
    """Return the gradient of the branch, with the dropout mask of the branch."""
    _, branch = site.operator.inputs
    probability = site.step.model.dropout
    return dropped(site, inputs, dy_MH, site.writes, branch, probability)


def fan_in(site: Site, inputs: StepInputs, *gradients: Array) -> Array:
    """Return the sum of the gradients of a tensor that several operators read."""
    first, *others = gradients
    total = first.copy()
    for other in others:
        total += other
    return total


def embedding_lookup(site: Site, inputs: StepInputs, tokens_M: Tokens, table_VH: Array) -> Array:
    """Return the rows of the tokens in this slice of the table, zeros for the others."""
    here, tokens = inside(tokens_M, site.reads[1], 0)
    x_MH = np.zeros((len(tokens_M), table_VH.shape[1]), table_VH.dtype)
    x_MH[here] = table_VH[tokens]
    return x_MH


def embedding_forward(
    site: Site, inputs: StepInputs, x_MH: Array, position_TH: Array | None = None
) -> Array:
    """Return the rows plus those of their positions, after dropout."""
    if position_TH is not None:
        x_MH = x_MH + position_TH[_positions(site, site.reads[0])]
    return embedding_backward(site, inputs, x_MH)


def embedding_backward(site: Site, inputs: StepInputs, dy_MH: Array) -> Array:
    """Return the gradient of the rows, with the dropout mask of the rows."""
    probability = site.step.model.embedding_dropout
    return dropped(site, inputs, dy_MH, site.writes, "embedding", probability)


def token_gradient(site: Site, inputs: StepInputs, tokens_M: Tokens, dy_MH: Array) -> Array:
    """Return these rows' terms in the gradient of this slice of the table: (V, H)."""
    (first, end), _ = site.writes
    here, tokens = inside(tokens_M, site.writes, 0)
    dtable_VH = np.zeros((end - first, dy_MH.shape[1]), dy_MH.dtype)
    np.add.at(dtable_VH, tokens, dy_MH[here])
    return dtable_VH


def position_gradient(site: Site, inputs: StepInputs, dy_MH: Array) -> Array:
    """Return these rows' terms in the gradient of the position table: (context, H)."""
    (first, end), _ = site.writes
    dtable_TH = np.zeros((end - first, dy_MH.shape[1]), dy_MH.dtype)
    np.add.at(dtable_TH, _positions(site, site.reads[0]), dy_MH)
    return dtable_TH


def _positions(site: Site, rows: Box) -> Tokens:
    return numbers(rows, 0) % site.step.positions


def loss_largest(site: Site, inputs: StepInputs, x_MV: Array) -> Array:
    """Return the largest logit of every row: (M)."""
    return np.asarray(_without_padding(site, x_MV).max(axis=1))


def loss_sums(
    site: Site, inputs: StepInputs, x_MV: Array, largest_M: Array, targets_M: Tokens
) -> Array:
    """Return two numbers of every row, after subtraction of its largest logit: (2, M).

    They are the sum of exponentials, and the target's logit (zero if it is not in the block).
    """
    x_MV = _without_padding(site, x_MV) - largest_M[:, None]
    rows, columns = inside(targets_M, site.reads[0], 1)
    target_M = np.zeros(len(x_MV), x_MV.dtype)
    target_M[rows] = x_MV[rows, columns]
    return np.stack([np.exp(x_MV).sum(axis=1), target_M])


def loss_forward(site: Site, inputs: StepInputs, sums_2M: Array) -> Array:
    """Return the sum of these rows' losses: (1). The program divides it by the step's rows."""
    sum_M, target_M = sums_2M
    return np.asarray(np.sum(np.log(sum_M) - target_M, keepdims=True))


def loss_shares(
    site: Site, inputs: StepInputs, x_MV: Array, largest_M: Array, sums_2M: Array
) -> Array:
    """Return the softmax probabilities."""
    x_MV = _without_padding(site, x_MV) - largest_M[:, None]
    return np.asarray(np.exp(x_MV) / sums_2M[0][:, None])


def loss_backward(site: Site, inputs: StepInputs, shares_MV: Array, targets_M: Tokens) -> Array:
    """Return the gradient of the rows' scaled losses; the program divides it by the step's rows."""
    dx_MV = shares_MV.copy()
    # The softmax, minus 1 at a target in this slice of the vocabulary.
    dx_MV[inside(targets_M, site.reads[0], 1)] -= 1
    return dx_MV * inputs.scale


def loss_logs(site: Site, inputs: StepInputs, x_MV: Array) -> Array:
    """Return the logarithms of the softmax probabilities of whole rows."""
    x_MV = _without_padding(site, x_MV)
    x_MV = x_MV - x_MV.max(axis=1, keepdims=True)
    return np.asarray(x_MV - np.log(np.exp(x_MV).sum(axis=1, keepdims=True)))


def whole_loss(site: Site, inputs: StepInputs, logs_MV: Array, targets_M: Tokens) -> Array:
    """Return the sum of these rows' losses: (1)."""
    return np.asarray(-np.sum(logs_MV[np.arange(len(logs_MV)), targets_M], keepdims=True))


def whole_loss_backward(site: Site, inputs: StepInputs, logs_MV: Array, targets_M: Tokens) -> Array:
    """Return the gradient of the rows' scaled losses."""
    return loss_backward(site, inputs, np.exp(logs_MV), targets_M)


def _without_padding(site: Site, x_MV: Array) -> Array:
    """Return the logits, with minus infinity in the padding of the vocabulary."""
    padding_V = numbers(site.reads[0], 1) >= site.step.model.vocabulary
    return np.where(padding_V, x_MV.dtype.type(-np.inf), x_MV)


def regression_residual(
    site: Site, inputs: StepInputs, x_WMN: Array, w_NK: Array, target_WMK: Array
) -> Array:
    """Return the prediction less the target: (1, M, K)."""
    return x_WMN @ w_NK - target_WMK


def regression_gradient(site: Site, inputs: StepInputs, x_WMN: Array, residual_WMK: Array) -> Array:
    """Return the gradient of half the sum of squares with respect to the weight: (1, N, K)."""
    return np.swapaxes(x_WMN, 1, 2) @ residual_WMK


def regression_part(site: Site, inputs: StepInputs, block_W: Array) -> Array:
    """Return a worker's block without the dim of workers."""
    return np.array(block_W[0])


LAYERS: dict[str, Kernel] = {
    "linear.forward": product,
    "linear.backward": product,
    "linear.gradient": product,
    "bias.forward": bias_forward,
    "bias.gradient": bias_gradient,
    "norm.moments": norm_moments,
    "norm.square": norm_square,
    "norm.normalize": norm_normalize,
    "norm.forward": norm_forward,
    "norm.gradient": norm_gradient,
    "norm.backward.sums": norm_backward_sums,
    "norm.backward": norm_backward,
    "layer_norm.statistics": row_statistics,
    "layer_norm.normalize": normalize_rows,
    "layer_norm.gradient": norm_gradient,
    "layer_norm.backward": layer_norm_backward,
    "activation.forward": activation_of,
    "activation.backward": activation_gradient,
    "add.forward": add,
    "add.backward": add_gradient,
    "sum.fan-in": fan_in,
    "embedding.lookup": embedding_lookup,
    "embedding.forward": embedding_forward,
    "embedding.backward": embedding_backward,
    "token.gradient": token_gradient,
    "position.gradient": position_gradient,
    "loss.largest": loss_largest,
    "loss.sums": loss_sums,
    "loss.forward": loss_forward,
    "loss.shares": loss_shares,
    "loss.backward": loss_backward,
    "cross_entropy.logs": loss_logs,
    "cross_entropy.forward": whole_loss,
    "cross_entropy.backward": whole_loss_backward,
    "regression.residual": regression_residual,
    "regression.gradient": regression_gradient,
    "workers.average": regression_part,
}
