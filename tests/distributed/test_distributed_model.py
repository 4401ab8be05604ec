"""Models of every family under plans, on real processes, against the NumPy model on one device."""

from __future__ import annotations

from functools import cache
from itertools import product

import distributed_model_cases as cases
import numpy as np
import pytest
import torch
from distributed_ranks import on_ranks
from lowered_steps import lower_step
from profiles import IS_LONG, few
from step_cases import calls_of_step, sent_by

from primepar.distributed.modules.model import PartitionedModel
from primepar.errors import PrimeParError
from primepar.models.dropout import Draw
from primepar.plan import Plan, parameter_places, preset_plan
from primepar.reference.oracle.transformer import Transformer

FAMILIES = ("gpt2", "opt", "llama", "bloom")
PLANS = {
    4: ("megatron", "megatron-sp", "summa", "tesseract", "primepar", "stationary", "data"),
    8: (
        *("megatron", "megatron-sp", "tesseract", "3d", "data"),
        *(f"M2,{name}" for name in ("megatron", "summa", "primepar", "stationary")),
    ),
}
MORE = {
    4: [
        ("gpt2-dropout", "megatron-sp"),
        ("llama-tied", "primepar"),
        ("opt", "data"),
        ("opt", "megatron"),
    ],
    8: [("gpt2-dropout", "3d"), ("llama-tied", "M2,stationary")],
}
MIXED = {
    "embedding": "N2,Ns2",
    "embedding.norm": "R2,K2",
    "norm1": "M2,K2",
    "qkv": "Is2x2",
    "attention": "K2,M2",
    "proj": "N2,K2",
    "add1": "S2x2",
    "norm2": "K4",
    "fc1": "P2x2",
    "act": "M4",
    "fc2": "Ws2x2",
    "add2": "R2,M2",
    "norm": "K2,R2",
    "head": "M2,Ks2",
    "loss": "K2,M2",
}
"""A sequence for each operator of a layer that differs from that of its neighbours."""
APART = {"qkv": "Ks2,Ns2", "proj": "Ns2,Ks2", "fc1": "Ks2,M2", "fc2": "Ns2,M2", "head": "Ks2,Ns2"}
"""Linear operators that leave several blocks apart on a device."""
OURS = {"mixed": MIXED, "apart": MIXED | APART}
ON_OURS = [*product(("llama-tied", "bloom"), OURS), ("gpt2-dropout", "apart")]


SMALL = {
    4: [
        *(("gpt2-dropout", "data 2"), ("llama", "stationary 1")),
        *(("llama-tied", "primepar 1 Ws2x2"), ("bloom", "mixed 2 M4"), ("opt", "data 6 K4")),
    ],
    8: [("bloom", "3d 2"), ("gpt2-dropout", "M2,summa 2")],
}
"""Batches so small that devices have parts of a sequence in their attention, or one and a half."""


SHORT = {
    4: [
        *(("opt", "megatron"), ("llama", "megatron"), ("gpt2-dropout", "megatron-sp")),
        *(("bloom", "summa"), ("llama-tied", "primepar"), ("gpt2-dropout", "data 2")),
        *(("llama-tied", "apart"), ("bloom", "mixed 2 M4")),
    ],
    8: [("opt", "M2,megatron"), ("llama-tied", "3d")],
}


def cases_on(ranks: int) -> list[tuple[str, str]]:
    """Every family under every plan; else a plan of each kind."""
    if not IS_LONG:
        return SHORT[ranks]
    named = [*product(FAMILIES, PLANS[ranks]), *MORE[ranks], *SMALL[ranks]]
    return named if ranks == 8 else [*named, *ON_OURS]


def plan_of(name: str, plan: str, ranks: int) -> Plan:
    """Of a method, perhaps with the sequences of a batch, and a partition of the attention."""
    method, *more = plan.split()
    config, size = cases.MODELS[name], int(more[0]) if more else cases.BATCH
    chosen = OURS.get(method, {})
    sequences = preset_plan("data" if chosen else method, config, ranks).sequences
    for operator in sequences:
        kind = operator.rpartition(".")[2]
        if chosen:
            sequences[operator] = chosen.get(operator, chosen[kind])
        if more[1:] and kind == "attention":
            sequences[operator] = more[1]
    return Plan(model=config, ranks=ranks, batch=size, sequences=sequences)


def batch_of(plan: Plan) -> int:
    assert plan.batch is not None
    return plan.batch


def results(ranks: int, name: str, plan: str, backend: str = "gloo") -> list[cases.Result]:
    """What every rank has of a case. On GPUs it has a world: one that hangs costs no other."""
    asked = ((name, plan),) if backend == "nccl" else tuple(cases_on(ranks))
    return [rank[asked.index((name, plan))] for rank in _world(ranks, asked, backend)]


@cache
def _world(
    ranks: int, asked: tuple[tuple[str, str], ...], backend: str
) -> list[list[cases.Result]]:
    plans = [(name, plan_of(name, plan, ranks)) for name, plan in asked]
    return on_ranks(ranks, cases.steps, ranks, plans, backend=backend)


@cache
def oracle(name: str, batch: int | None = None) -> tuple[float, cases.Arrays]:
    config = cases.MODELS[name]
    model = Transformer(config, cases.parameters(config))
    loss, gradients = model.loss_and_gradients(*cases.batch(config, batch), draw_of(name))
    return loss, dict(gradients)


def draw_of(name: str) -> Draw | None:
    return Draw(cases.SEED, cases.STEP) if cases.MODELS[name].dropout else None


def worst(got: cases.Arrays, expected: cases.Arrays) -> float:
    """Largest difference of two sets of arrays, each relative to the largest of its entries."""
    assert got.keys() == expected.keys()
    return max(
        float(np.abs(got[name] - array).max() / np.abs(array).max())
        for name, array in expected.items()
    )


ON = [(ranks, *case) for ranks in PLANS for case in cases_on(ranks)]


@pytest.mark.parametrize("name", cases.MODELS)
def test_one_process_is_the_numpy_model(name: str) -> None:
    (got,) = cases.steps(1, [(name, "data")])
    loss, gradients = oracle(name)
    assert got.loss == pytest.approx(loss, rel=1e-12)
    assert worst(got.gradients, gradients) < 1e-12


@pytest.mark.parametrize(("ranks", "name", "plan"), ON)
def test_loss_and_every_gradient_equal_the_numpy_model(ranks: int, name: str, plan: str) -> None:
    everyone = results(ranks, name, plan)
    loss, gradients = oracle(name, plan_of(name, plan, ranks).batch)
    assert everyone[0].loss == pytest.approx(loss, rel=1e-10)
    assert [result.loss for result in everyone] == [everyone[0].loss] * ranks
    assert worst(everyone[0].gradients, gradients) < 1e-10


@few
@pytest.mark.parametrize(("ranks", "name", "plan"), ON)
def test_every_rank_sends_what_the_program_of_the_step_sends(
    ranks: int, name: str, plan: str
) -> None:
    planned, config = plan_of(name, plan, ranks), cases.MODELS[name]
    program = lower_step(planned, batch_of(planned), config.context, "gradients")
    sent = [result.sent for result in results(ranks, name, plan)]
    assert sent == sent_by(calls_of_step(program))


@pytest.mark.parametrize(("ranks", "plan"), [(4, "megatron"), (8, "M2,megatron")])
def test_copies_of_a_parameter_have_the_same_gradient_bit_for_bit(ranks: int, plan: str) -> None:
    everyone = results(ranks, "opt", plan)
    model = plan_of("opt", plan, ranks)
    other = [
        name
        for name, place in parameter_places(model).items()
        for rank, held in enumerate(place.layout.held)
        if not np.array_equal(
            everyone[rank].blocks[name], everyone[place.layout.held.index(held)].blocks[name]
        )
    ]
    assert other == []


def test_padding_gets_no_probability_and_no_gradient() -> None:
    (plan, padded) = (plan_of("llama", "megatron", 4), 40)
    blocks = [result.blocks["head.weight"] for result in results(4, "llama", "megatron")]
    whole = np.concatenate(blocks, axis=1)
    assert whole.shape == (plan.model.hidden, padded)
    assert not whole[:, plan.model.vocabulary :].any()
    assert whole[:, : plan.model.vocabulary].all()


def test_gradients_add_up_and_a_frozen_parameter_has_none() -> None:
    model = cases.planned("gpt2", "data", cases.mesh_of(1))
    model.get_parameter("norm.bias").requires_grad_(False)
    tokens_BT, targets_BT = map(torch.from_numpy, cases.batch(model.config))
    gradients = []
    for factor in (1, 2):
        loss = sum((model.loss(tokens_BT, targets_BT) for _ in range(factor)), torch.zeros(()))
        loss.backward()  # type: ignore[no-untyped-call]
        parameters = model.named_parameters()
        gradients.append(cases.arrays({name: tensor.grad for name, tensor in parameters}))
    once, thrice = gradients
    assert once.keys() == model.config.parameter_shapes.keys() - {"norm.bias"}
    assert worst(thrice, {name: 3 * gradient for name, gradient in once.items()}) < 1e-14


def test_a_second_backward_of_a_loss_is_refused() -> None:
    model = cases.planned("gpt2", "data", cases.mesh_of(1))
    tokens_BT, targets_BT = map(torch.from_numpy, cases.batch(model.config))
    loss = model.loss(tokens_BT, targets_BT)
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError) as caught:
        loss.backward()  # type: ignore[no-untyped-call]
    assert str(caught.value) == (
        "loss: expected one backward, got a second one: call loss again before it"
    )


def test_without_gradients_the_loss_is_the_same_and_logits_give_it() -> None:
    model = cases.planned("bloom", "data", cases.mesh_of(1))
    tokens_BT, targets_BT = map(torch.from_numpy, cases.batch(model.config))
    loss = model.loss(tokens_BT, targets_BT)
    with torch.no_grad():
        evaluated = model.loss(tokens_BT, targets_BT)
    assert (loss.requires_grad, evaluated.requires_grad) == (True, False)
    # A norm whose normalized rows are kept for backward may take another kernel.
    assert evaluated.item() == pytest.approx(loss.item(), rel=1e-15)
    logits_RC = model(tokens_BT)
    assert not logits_RC.requires_grad
    expected = torch.nn.functional.cross_entropy(
        logits_RC[:, : model.config.vocabulary], targets_BT.flatten()
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-13)


def message_of(work: object, *arguments: object) -> str:
    assert callable(work)
    with pytest.raises(PrimeParError) as caught:
        work(*arguments)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_plan_for_other_devices_is_refused() -> None:
    plan = preset_plan("megatron", cases.MODELS["gpt2"], 4)
    assert message_of(PartitionedModel, plan, cases.mesh_of(1)) == (
        "PlanError: plan: expected 4 devices, as it was made for, got 1: "
        "start 4 processes, or make a plan for 1"
    )


def test_tokens_that_do_not_fit_are_refused() -> None:
    model = cases.planned("llama", "data", cases.mesh_of(1))
    tokens_BT = torch.zeros((8, 7), dtype=torch.int64)
    assert message_of(model, tokens_BT) == (
        "ShapeError: tokens: expected at most context=6 positions, got 7: cut the sequences"
    )
    assert message_of(model.loss, tokens_BT, tokens_BT[:, 1:]) == (
        "ShapeError: targets: expected a target for each token, shape (8, 7), got (8, 6)"
    )
    assert message_of(model, tokens_BT[:3]) == (
        "PlanError: batch: expected 8, as the plan states, got 3: take that, or a plan for this one"
    )
