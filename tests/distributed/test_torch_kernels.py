"""Every torch kernel against dense NumPy functions, on whole tensors and on blocks of them.

Where blocks of bfloat16 are given, the oracle gets the same numbers in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from kernel_cases import Step, assert_close, drawn, working
from lowered_steps import lower_step
from partitioned_cases import DRAW, PRESET_MESHES, SHAPES
from profiles import IS_LONG, few
from step_cases import SMALL, lowered

from primepar.distributed.kernels import KERNELS
from primepar.distributed.kernels.linear import product as linear_product
from primepar.models import ModelConfig
from primepar.operators import StepInputs, StepSettings
from primepar.plan import preset_plan
from primepar.reference.oracle import layers
from primepar.reference.oracle import train as optimizers

BATCH, POSITIONS = 2, 4
ROWS, HIDDEN, WORDS = BATCH * POSITIONS, 16, 21
PADDED = 24
"""So that the last of 8 slices of the vocabulary is padding alone."""
TYPES = (torch.float64, torch.bfloat16)
GRIDS: tuple[dict[str, int], ...] = ({}, {"M": 2, "K": 2, "V": 8}, {"M": 4, "K": 8, "V": 2})
DRAWN = StepInputs(DRAW)
WHOLE_ROWS = pytest.mark.parametrize(
    ("dtype", "rows"), [(TYPES[0], 2), *((dtype, 1) for dtype in TYPES)], ids=str
)
BLOCK = pytest.mark.parametrize(("dtype", "grid"), list(product(TYPES, GRIDS)), ids=str)


def step_of(family: str, dtype: torch.dtype, grid: dict[str, int], drops: bool = False) -> Step:
    settings = StepSettings(SMALL[family], BATCH, POSITIONS)
    return Step(settings, dtype, grid, DRAWN if drops else None)


def given(dtype: torch.dtype, *shape: int, seed: int = 0) -> tuple[torch.Tensor, Any]:
    """A block of the type, and the same numbers for the oracle."""
    block = drawn(*shape, seed=seed).to(dtype)
    return block, block.double().numpy()


OTHERS = {
    "sgd.update",
    "master.update",
    "regression.residual",
    "regression.gradient",
    "workers.average",
}
"""Kernels of local SGD and of another optimizer, which `test_local_training` compares."""


def test_every_kernel_that_a_preset_names_is_there() -> None:
    plans = PRESET_MESHES if IS_LONG else [("primepar", 4), ("megatron-sp", 4)]
    programs = [lowered(plan, ranks, family) for family, (plan, ranks) in product(SMALL, plans)]
    programs.append(lower_step(preset_plan("data", SMALL["gpt2"], 4), 2, 4))  # parts of sequences
    phases = [phase for program in programs for phase in (program.phases or {}).values()]
    named = {phase.kernel for phase in phases}
    assert named == set(KERNELS) - OTHERS


LINEAR: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "forward": ("I[M,N] W[N,K] -> O[M,K]", lambda i, w, d: i @ w),
    "backward": ("dO[M,K] W[N,K] -> dI[M,N]", lambda i, w, d: d @ w.T),
    "gradient": ("I[M,N] dO[M,K] -> dW[N,K]", lambda i, w, d: i.T @ d),
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("phase", LINEAR)
@pytest.mark.parametrize("grid", [{}, {"M": 2, "N": 4, "K": 3}], ids=str)
def test_a_product_of_blocks_in_the_order_of_their_dims(
    phase: str, tied: bool, grid: dict[str, int]
) -> None:
    signature, oracle = LINEAR[phase]
    whole = {"I": drawn(8, 16), "W": drawn(16, 21), "dO": drawn(8, 21), "dI": drawn(8, 16)}
    expected = oracle(whole["I"], whole["W"], whole["dO"])
    whole["dW"] = whole["W"]
    if tied:
        signature = signature.replace("[N,K]", "[K,N]")
        whole["W"] = whole["W"].T.contiguous()
        expected = expected.T.contiguous() if phase == "gradient" else expected
    *reads, _ = (text.partition("[")[0] for text in signature.replace("-> ", "").split())
    operands = [whole[name] for name in reads]
    shape = tuple(expected.shape)
    got = Step(None, grid=grid).run(f"linear.{phase}", signature, *operands, shape=shape)
    assert_close(got, expected)


def test_a_batch_dim_and_rows_are_rows_together() -> None:
    i, w, d = drawn(2, 4, 6), drawn(6, 5), drawn(2, 4, 5)
    step = Step(None, grid={"B": 2, "M": 2, "N": 3})
    o = step.run("linear.forward", "I[B,M,N] W[N,K] -> O[B,M,K]", i, w, shape=(2, 4, 5))
    dw = step.run("linear.gradient", "I[B,M,N] dO[B,M,K] -> dW[N,K]", i, d, shape=(6, 5))
    assert_close(o, i @ w)
    assert_close(dw, torch.einsum("bmn,bmk->nk", i, d))


def test_a_product_is_written_into_a_block_or_added_to_it() -> None:
    first, second = drawn(6, 16)[:, ::2], drawn(8, 5)  # a strided view
    into = torch.full((6, 5), torch.nan, dtype=torch.float64)
    linear_product(first, second, into, False, 1.0)
    assert_close(into, first @ second)
    linear_product(first, second, into, True, 1.0)
    assert_close(into, 2 * first @ second)
    linear_product(first, second, into, True, 0.25)
    assert_close(into, 2.25 * first @ second)
    scaled = torch.full((6, 5), torch.nan, dtype=torch.float64)
    linear_product(first, second, scaled, False, 0.25)
    assert_close(scaled, 0.25 * first @ second)


@BLOCK
def test_bias(dtype: torch.dtype, grid: dict[str, int]) -> None:
    (y, y_), (b, b_) = given(dtype, ROWS, HIDDEN), given(dtype, HIDDEN)
    step = step_of("gpt2", dtype, grid)
    done = step.run("bias.forward", "y[M,K] b[K] -> o[M,K]", y, b, shape=(ROWS, HIDDEN))
    gradient = step.run("bias.gradient", "dy[M,K] -> db[K]", y, shape=(HIDDEN,), wide=True)
    assert_close(done, y_ + b_)
    assert_close(gradient, y_.sum(0))


@few
@BLOCK
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_norm(family: str, dtype: torch.dtype, grid: dict[str, int]) -> None:
    step, shape = step_of(family, dtype, grid), (ROWS, HIDDEN)
    centred = family == "gpt2"
    (x, x_), (w, w_), (b, b_) = (
        given(dtype, *shape),
        given(dtype, HIDDEN),
        given(dtype, HIDDEN, seed=1),
    )
    dy, dy_ = given(dtype, *shape, seed=1)
    bias = [b] if centred else []
    if centred:
        parts = grid.get("K", 1)
        statistics = step.run("norm.moments", "x[M,K] -> moments[0,M,K]", x,
                              shape=(2, ROWS, parts), wide=True)  # fmt: skip
        known = "moments[0,M,0]"
    else:
        statistics = step.run("norm.square", "x[M,K] -> square[M]", x, shape=(ROWS,), wide=True)
        known = "s[M]"
    normed = step.run(
        "norm.normalize", f"x[M,K] {known} -> n[M,K]", x, statistics, shape=shape, wide=True
    )
    reads = "n[M,K] w[K]" + " b[K]" * centred
    y = step.run("norm.forward", f"{reads} -> y[M,K]", normed, w, *bias, shape=shape)
    gradients = [step.run("norm.gradient", "d[M,K] n[M,K] -> dw[K]", dy, normed, shape=(HIDDEN,),
                          wide=True)]  # fmt: skip
    if centred:
        gradients.append(step.run("bias.gradient", "d[M,K] -> db[K]", dy, shape=(HIDDEN,),
                                  wide=True))  # fmt: skip
    sums = step.run("norm.backward.sums", "d[M,K] w[K] n[M,K] -> sums[0,M]", dy, w, normed,
                    shape=(1 + centred, ROWS), wide=True)  # fmt: skip
    dx = step.run("norm.backward", f"d[M,K] w[K] n[M,K] {known} sums[0,M] -> dx[M,K]",
                  dy, w, normed, statistics, sums, shape=shape)  # fmt: skip
    epsilon = SMALL[family].epsilon
    if centred:
        assert_close(y, layers.layer_norm(x_, w_, b_, epsilon))
        expected: tuple[Any, ...] = layers.layer_norm_backward(x_[None], w_, dy_[None], epsilon)
    else:
        assert_close(y, layers.rms_norm(x_, w_, epsilon))
        expected = layers.rms_norm_backward(x_[None], w_, dy_[None], epsilon)
    for got, wanted in zip([dx[None], *gradients], expected, strict=True):
        assert_close(got, wanted)


@WHOLE_ROWS
def test_a_layer_norm_of_whole_rows(dtype: torch.dtype, rows: int) -> None:
    step, shape = step_of("gpt2", dtype, {"M": rows}), (ROWS, HIDDEN)
    (x, x_), (w, w_), (b, b_) = (
        given(dtype, *shape),
        given(dtype, HIDDEN),
        given(dtype, HIDDEN, seed=1),
    )
    dy, dy_ = given(dtype, *shape, seed=1)
    statistics = step.run("layer_norm.statistics", "x[M,K] -> s[0,M]", x, shape=(2, ROWS),
                          wide=True)  # fmt: skip
    normed = step.run("layer_norm.normalize", "x[M,K] -> n[M,K]", x, shape=shape, wide=True)
    y = step.run("norm.forward", "n[M,K] w[K] b[K] -> y[M,K]", normed, w, b, shape=shape)
    dw = step.run("layer_norm.gradient", "d[M,K] n[M,K] -> dw[K]", dy, normed, shape=(HIDDEN,),
                  wide=True)  # fmt: skip
    dx = step.run("layer_norm.backward", "d[M,K] w[K] n[M,K] s[0,M] -> dx[M,K]", dy, w, normed,
                  statistics, shape=shape)  # fmt: skip
    epsilon = SMALL["gpt2"].epsilon
    assert_close(y, layers.layer_norm(x_, w_, b_, epsilon))
    dx_, dw_, _ = layers.layer_norm_backward(x_[None], w_, dy_[None], epsilon)
    assert_close(dx, dx_[0])
    assert_close(dw, dw_)


@few
@BLOCK
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", layers.ACTIVATIONS)
def test_activation(name: Any, gated: bool, dtype: torch.dtype, grid: dict[str, int]) -> None:
    model = ModelConfig.of(
        "gpt", hidden=HIDDEN, heads=8, layers=1, context=4, vocabulary=WORDS, activation=name,
        gated=gated, ffn=24,
    )  # fmt: skip
    step = Step(StepSettings(model, BATCH, POSITIONS), dtype, grid)
    (x, x_), (dy, dy_) = given(dtype, ROWS, model.fc1_columns), given(dtype, ROWS, 24, seed=1)
    y = step.run("activation.forward", "x[M,K] -> y[M,K]", x, shape=(ROWS, 24))
    dx = step.run("activation.backward", "x[M,K] d[M,K] -> dx[M,K]", x, dy, shape=tuple(x.shape))
    assert_close(y, layers.activation(model, x_))
    assert_close(dx, layers.activation_backward(model, x_, dy_))


@few
@BLOCK
@pytest.mark.parametrize("drops", [False, True])
def test_addition_drops_what_the_operator_of_the_branch_drops(
    drops: bool, dtype: torch.dtype, grid: dict[str, int]
) -> None:
    step = step_of("gpt2", dtype, grid, drops)
    assert step.settings is not None
    shape, branches = (ROWS, HIDDEN), {"blocks.0.add1": "proj", "blocks.0.add2": "fc2"}
    (x, x_), (b, b_) = given(dtype, *shape), given(dtype, *shape, seed=1)
    for name, branch in branches.items():
        assert step.settings.operators[name].inputs[1] == f"blocks.0.{branch}"
        y = step.run("add.forward", "x[M,K] b[M,K] -> y[M,K]", x, b, shape=shape, name=name)
        db = step.run("add.backward", "d[M,K] -> db[M,K]", b, shape=shape, name=name)
        dropped = _dropped(b_, f"blocks.0.{branch}", SMALL["gpt2"].dropout, drops)
        assert_close(y, x_ + dropped)
        assert_close(db, dropped)


def _dropped(x: Any, operator: str, probability: float, drops: bool) -> Any:
    """What the dense model makes of an activation."""
    rows, columns = map(np.arange, x.shape)
    draw = DRAW if drops else None
    kept = layers.kept_elements(draw, probability, operator, rows, columns, len(columns))
    return layers.dropout(x, kept, probability)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_that_come_from_several_operators_are_added(dtype: torch.dtype) -> None:
    (a, a_), (b, b_), (c, c_) = (given(dtype, ROWS, HIDDEN, seed=seed) for seed in range(3))
    step = step_of("gpt2", dtype, {"M": 2})
    three = step.run("sum.fan-in", "a[M,K] b[M,K] c[M,K] -> s[M,K]", a, b, c, shape=(ROWS, HIDDEN))
    assert_close(three, a_ + b_ + c_)
    wide = a.to(working(dtype))
    two = step.run("sum.fan-in", "a[M,K] b[M,K] -> s[M,K]", wide, b, shape=(ROWS, HIDDEN),
                   wide=True)  # fmt: skip
    assert_close(two, a_ + b_)


@few
@BLOCK
@pytest.mark.parametrize("drops", [False, True])
def test_embedding(drops: bool, dtype: torch.dtype, grid: dict[str, int]) -> None:
    step, shape = step_of("gpt2", dtype, grid, drops), (ROWS, HIDDEN)
    model, context = SMALL["gpt2"], SMALL["gpt2"].context + 2
    assert step.settings is not None
    step.settings = replace(step.settings, model=replace(model, context=context))
    tokens = torch.tensor([3, 20, 3, 0, 7, 20, 20, 11])
    (table, table_), (position, position_) = (
        given(dtype, PADDED, HIDDEN),
        given(dtype, context, HIDDEN),
    )
    dy, dy_ = given(dtype, *shape, seed=1)
    name, probability = "embedding", model.embedding_dropout
    rows = step.run("embedding.lookup", "t[M] w[V,K] -> r[M,K]", tokens, table, shape=shape)
    x = step.run("embedding.forward", "r[M,K] p[0,K] -> x[M,K]", rows, position, shape=shape,
                 name=name)  # fmt: skip
    alone = step.run("embedding.forward", "r[M,K] -> x[M,K]", rows, shape=shape, name=name)
    dsum = step.run("embedding.backward", "d[M,K] -> s[M,K]", dy, shape=shape, name=name)
    dtoken = step.run("token.gradient", "t[M] d[M,K] -> g[V,K]", tokens, dy,
                      shape=(PADDED, HIDDEN), wide=True)  # fmt: skip
    dposition = step.run("position.gradient", "d[M,K] -> g[0,K]", dy, shape=(context, HIDDEN),
                         wide=True)  # fmt: skip
    tokens_BT = tokens.view(BATCH, -1).numpy()
    summed = layers.embedding(tokens_BT, table_, position_).reshape(shape)
    assert_close(x, _dropped(summed, name, probability, drops))
    assert_close(alone, _dropped(table_[tokens.numpy()], name, probability, drops))
    assert_close(dsum, _dropped(dy_, name, probability, drops))
    dy_BTH = dy_.reshape(BATCH, POSITIONS, HIDDEN)
    expected = layers.embedding_backward(tokens_BT, table_, position_, dy_BTH)
    assert_close(dtoken, expected[0])
    assert_close(dposition, expected[1])


@BLOCK
def test_loss_of_a_padded_vocabulary(dtype: torch.dtype, grid: dict[str, int]) -> None:
    step = step_of("gpt2", dtype, grid)
    x, x_ = given(dtype, ROWS, PADDED)
    x[:, WORDS:] = 1000  # must not count
    targets = torch.tensor([3, 20, 3, 0, 7, 20, 20, 11])
    largest = step.run("loss.largest", "x[M,K] -> l[M]", x, shape=(ROWS,), wide=True,
                       reduction="max")  # fmt: skip
    sums = step.run("loss.sums", "x[M,K] l[M] t[M] -> s[0,M]", x, largest, targets,
                    shape=(2, ROWS), wide=True)  # fmt: skip
    losses = step.run("loss.forward", "s[0,M] -> loss[0]", sums, shape=(1,), wide=True)
    shares = step.run("loss.shares", "x[M,K] l[M] s[0,M] -> p[M,K]", x, largest, sums,
                      shape=(ROWS, PADDED), wide=True)  # fmt: skip
    dx = step.run("loss.backward", "p[M,K] t[M] -> dx[M,K]", shares, targets,
                  shape=(ROWS, PADDED), wide=True)  # fmt: skip
    dx /= ROWS  # as the program's scale does
    words_ = x_[:, :WORDS]
    assert_close(largest, words_.max(1))
    assert_close(losses / ROWS, [layers.cross_entropy(words_, targets.numpy())])
    assert_close(dx[:, :WORDS], layers.cross_entropy_backward(words_, targets.numpy()))
    assert not dx[:, WORDS:].any()


@WHOLE_ROWS
def test_loss_of_whole_rows(dtype: torch.dtype, rows: int) -> None:
    step = step_of("gpt2", dtype, {"M": rows})
    x, x_ = given(dtype, ROWS, PADDED)
    x[:, WORDS:] = 1000  # must not count
    targets = torch.tensor([3, 20, 3, 0, 7, 20, 20, 11])
    logs = step.run("cross_entropy.logs", "x[M,K] -> logs[M,K]", x, shape=(ROWS, PADDED),
                    wide=True)  # fmt: skip
    losses = step.run("cross_entropy.forward", "logs[M,K] t[M] -> loss[0]", logs, targets,
                      shape=(1,), wide=True)  # fmt: skip
    dx = step.run("cross_entropy.backward", "logs[M,K] t[M] -> dx[M,K]", logs, targets,
                  shape=(ROWS, PADDED), wide=True)  # fmt: skip
    words_ = x_[:, :WORDS]
    assert_close(losses / ROWS, [layers.cross_entropy(words_, targets.numpy())])
    assert_close(dx[:, :WORDS] / ROWS, layers.cross_entropy_backward(words_, targets.numpy()))
    assert not dx[:, WORDS:].any()


@few
@pytest.mark.parametrize(
    ("clip", "scale"), [(None, None), (0.5, None), (1000.0, None), (None, 256.0), (0.5, 256.0)]
)
def test_twenty_updates_are_those_of_adamw(clip: float | None, scale: float | None) -> None:
    """With a scale of the loss each of them comes after one with an infinite gradient."""
    model, rate = SHAPES["gpt2"], 1e-2
    names = ["blocks.0.fc1.weight", "blocks.0.fc1.bias", "norm.weight", "embedding.token"]
    w = {name: drawn(*model.parameter_shapes[name]) for name in names}
    start = {name: tensor.numpy().copy() for name, tensor in w.items()}
    reference = optimizers.AdamW(rate, weight_decay=0.1, decayed=names[:1])
    theirs = [torch.nn.Parameter(tensor.clone()) for tensor in w.values()]
    groups = [
        {"params": [tensor], "weight_decay": 0.1 * (name == names[0])}
        for name, tensor in zip(names, theirs, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    moments = {
        name: (torch.zeros_like(tensor), torch.zeros_like(tensor)) for name, tensor in w.items()
    }
    settings = StepSettings(model, BATCH, POSITIONS, clip)
    for number in range(1, 21):
        step = Step(settings, inputs=StepInputs(rate=rate, number=number, loss_scale=scale))
        g = {name: drawn(*tensor.shape, seed=number) for name, tensor in w.items()}
        norm = _norm(step, g)
        for name in names:
            given, state = g[name] * step.inputs.scale, (w[name], *moments[name])
            if scale is not None:
                left = _updated(step, name, state, given / 0, torch.full((1,), torch.inf))
                assert all(map(torch.equal, left, state))
            w[name], *rest = _updated(step, name, state, given, norm)
            moments[name] = rest[0], rest[1]
        factor = 1.0 if clip is None else min(1.0, clip / float(norm))
        for parameter, name in zip(theirs, names, strict=True):
            parameter.grad = g[name] * factor
        optimizer.step()
        start = reference.step(start, {name: tensor.numpy() * factor for name, tensor in g.items()})
    for parameter, name in zip(theirs, names, strict=True):
        np.testing.assert_allclose(w[name], parameter.detach(), rtol=1e-12)
        np.testing.assert_allclose(w[name], start[name], rtol=1e-12, atol=1e-14)


def _norm(step: Step, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    """The norm of all gradients, of which those of two dims are squared together."""
    squares = []
    for dims in ("X", "X,Y"):
        alike = [
            gradient for gradient in gradients.values() if gradient.dim() == len(dims.split(","))
        ]
        for size in {gradient.shape for gradient in alike}:
            same_shape = [
                gradient * step.inputs.scale for gradient in alike if gradient.shape == size
            ]
            reads = " ".join(f"g{number}[{dims}]" for number in range(len(same_shape)))
            squares.append(step.run("clip.squares", f"{reads} -> s[0]", *same_shape, shape=(1,)))
    reads = " ".join(f"s{number}[0]" for number in range(len(squares)))
    norm = step.run("clip.norm", f"{reads} -> norm[0]", *squares, shape=(1,))
    assert_close(norm, [sum(float((gradient**2).sum()) for gradient in gradients.values()) ** 0.5])
    return norm


def _updated(
    step: Step,
    name: str,
    state: tuple[torch.Tensor, ...],
    gradient: torch.Tensor,
    norm: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """The new parameter and moments, of the old ones."""
    assert step.settings is not None
    w, *moments = state
    dims, shape = ("[N]" if w.dim() == 1 else "[N,K]"), tuple(w.shape)
    skip = [] if step.inputs.loss_scale is None else [norm]
    clip = skip if step.settings.clip is None else [norm]
    reads = f"m{dims} g{dims}" + " norm[0]" * len(clip)
    m, v = (
        step.run(kernel, f"{reads} -> n{dims}", moment, gradient, *clip, shape=shape)
        for kernel, moment in zip(("first.update", "second.update"), moments, strict=True)
    )
    signature = f"w{dims} m{dims} v{dims}" + " norm[0]" * len(skip) + f" -> n{dims}"
    new = step.run("adamw.update", signature, w, m, v, *skip, shape=shape, name=name)
    return new, m, v


def test_an_update_in_half_precision_takes_gradients_of_both_types() -> None:
    (w, w_), (g, g_) = (given(torch.bfloat16, 8, 6, seed=seed) for seed in (0, 1))
    settings = StepSettings(SMALL["gpt2"], BATCH, POSITIONS)
    step = Step(settings, torch.bfloat16, {"N": 2, "K": 3}, StepInputs(rate=0.1, number=1))
    nothing = torch.zeros_like(w)
    for gradient in (g, g.float()):
        new, m, v = _updated(step, "norm.weight", (w, nothing, nothing), gradient, g)
        assert_close(m, 0.1 * g_)
        assert_close(v, 0.05 * g_**2)
        assert_close(new, w_ - 0.1 * np.sign(g_))


@pytest.mark.parametrize("mean", [0.0, 1e2, 1e4])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_layer_norm_of_rows_with_a_large_mean_loses_no_more_than_torch_does(
    mean: float, parts: int
) -> None:
    """Next to the layer norm of torch in float64, of the same float32 rows; deviations are 1."""
    step = step_of("gpt2", torch.float32, {"M": 1, "K": parts})
    x = (drawn(ROWS, HIDDEN) + mean).float()
    moments = step.run("norm.moments", "x[M,K] -> moments[0,M,K]", x, shape=(2, ROWS, parts),
                       wide=True)  # fmt: skip
    normed = step.run("norm.normalize", "x[M,K] moments[0,M,0] -> n[M,K]", x, moments,
                      shape=(ROWS, HIDDEN), wide=True)  # fmt: skip
    epsilon = SMALL["gpt2"].epsilon
    exact = torch.nn.functional.layer_norm(x.double(), (HIDDEN,), eps=epsilon)
    whole = torch.nn.functional.layer_norm(x, (HIDDEN,), eps=epsilon)
    lost, lost_by_torch = ((made - exact).abs().max().item() for made in (normed, whole))
    assert lost <= 2 * lost_by_torch
