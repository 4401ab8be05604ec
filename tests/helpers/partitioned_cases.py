"""Models and plans for the partitioned model: presets, and random plans for hypothesis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import cycle
from math import isqrt
from typing import Any, get_args

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from primepar.errors import PlanError, SequenceError
from primepar.models import ModelConfig, operators
from primepar.models.config import Family
from primepar.models.dropout import Draw
from primepar.plan import Plan, preset_plan
from primepar.plan.checks import check_sequence
from primepar.reference.emulator.model import EmulatedModel, ModelStep
from primepar.reference.oracle.layers import Array, Tokens
from primepar.reference.oracle.transformer import Transformer

DRAW = Draw(seed=3, step=5)
DROPOUTS: dict[str, Any] = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3}
SIZES: dict[str, Any] = {"layers": 2, "hidden": 16, "heads": 8, "context": 4, "vocabulary": 21}
SHAPES = {
    "gpt2": ModelConfig.of("gpt2", **SIZES, **DROPOUTS),
    "opt": ModelConfig.of("opt", **SIZES, **DROPOUTS),
    "llama": ModelConfig.of("llama", **SIZES | {"heads": 16}, kv_heads=8, head_dim=2, ffn=24),
    "bloom": ModelConfig.of("bloom", **SIZES, **DROPOUTS),
}
"""Two layers of every family; 3 tokens short of a vocabulary that 8 devices divide."""

ON_FOUR = ("megatron", "megatron-sp", "summa", "tesseract", "primepar", "stationary",
           "stationary-both-ways", "data")  # fmt: skip
ON_EIGHT = ("megatron", "megatron-sp", "tesseract", "3d", "data")
WITH_DATA = ("M2,megatron", "M2,megatron-sp", "M2,summa", "M2,primepar", "M2,stationary")
PRESET_MESHES = [
    *((name, 4) for name in (*ON_FOUR, "M2,megatron", "M2,megatron-sp")),
    *((name, 8) for name in (*ON_EIGHT, *WITH_DATA)),
]
"""Every preset plan on every mesh of 4 and of 8 devices that it fits."""

APART = {
    4: ("Ks2,Ns2", "Ns2,Ks2", "Ks2,M2", "Ns2,M2"),
    8: ("Ks2,P2x2", "Ns2,S2x2", "Ks2,Ns2,Ks2", "Ns2,Ks2,Ns2"),
    16: ("C2x2x2,K2", "D2x2x2,Ks2", "Ks2,Os2x2,M2", "Ns4,Ks4"),
}
"""Devices -> sequences that leave several blocks of a linear operator's tensors apart."""

LINES, SQUARES, CUBES = ("M", "N", "K", "Ks", "Ns", "R"), ("P", "S", "Os", "Is", "Ws"), "C Cr D"


def drawn_parameters(config: ModelConfig) -> dict[str, Array]:
    """Return parameters all of which matter: none is left at zero or at one."""
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(float("norm" in name and "bias" not in name), 0.3, shape)
        for name, shape in config.parameter_shapes.items()
    }


def drawn_batch(config: ModelConfig, batch: int, positions: int) -> tuple[Tokens, Tokens]:
    """Return random tokens and targets."""
    shape = (2, batch, positions)
    tokens, targets = np.random.default_rng(1).integers(0, config.vocabulary, shape)
    return tokens, targets


@cache
def dense_step(config: ModelConfig, batch: int, positions: int) -> tuple[float, dict[str, Array]]:
    """Return loss and gradients on one device."""
    model = Transformer(config, drawn_parameters(config))
    return model.loss_and_gradients(*drawn_batch(config, batch, positions), DRAW)


def step(plan: Plan, batch: int, positions: int) -> ModelStep:
    """Return what the devices of a plan make of the same."""
    model = EmulatedModel(plan.model, plan, drawn_parameters(plan.model))
    return model.loss_and_gradients(*drawn_batch(plan.model, batch, positions), DRAW)


def difference(plan: Plan, batch: int, positions: int) -> float:
    """Return the largest relative difference of the loss and of every gradient."""
    expected_loss, expected = dense_step(plan.model, batch, positions)
    got = step(plan, batch, positions)
    return max(abs(got.loss / expected_loss - 1), farthest(got.gradients, expected))


def farthest(got: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """Return the largest difference of an array by its largest element."""
    assert got.keys() == expected.keys()
    return max(
        float(np.abs(got[name] - array).max() / np.abs(array).max())
        for name, array in expected.items()
    )


def plan_apart(model: ModelConfig, ranks: int) -> Plan:
    """Return a plan whose linear operators leave blocks apart, every other one being as `data`."""
    linears = [operator.name for operator in operators(model) if operator.kind == "linear"]
    texts = dict(zip(linears, cycle(APART[ranks]), strict=False))
    return Plan(
        model=model, ranks=ranks, sequences=preset_plan("data", model, ranks).sequences | texts
    )


def primitives(devices: int) -> list[str]:
    """Return every primitive on `devices` devices, as written in sequences."""
    names = [f"{label}{devices}" for label in LINES]
    for side in range(2, isqrt(devices) + 1):
        depth, rest = divmod(devices, side * side)
        names += [f"{label}{side}x{side}" for label in SQUARES if (depth, rest) == (1, 0)]
        names += [f"T{side}x{side}x{depth}"] if rest == 0 else []
        names += [f"{label}{side}x{side}x{side}" for label in CUBES.split() if depth == side]
    return names


@cache
def texts(ranks: int) -> tuple[str, ...]:
    """Return every sequence on `ranks` devices, including those that fit no operator."""
    if ranks == 1:
        return ("",)
    return tuple(
        ",".join(filter(None, (first, rest)))
        for devices in range(2, ranks + 1)
        if ranks % devices == 0
        for first in primitives(devices)
        for rest in texts(ranks // devices)
    )


@cache
def fitting(model: ModelConfig, ranks: int, operator: str) -> tuple[str, ...]:
    """Return the sequences that a plan may have for an operator.

    Those of one layer are those of any: the second of two is asked about as the first.
    """
    (asked,) = (known for known in operators(model) if known.name == operator)

    def fits(text: str) -> bool:
        try:
            check_sequence(model, ranks, asked, text)
        except (PlanError, SequenceError):
            return False
        return True

    return tuple(text for text in texts(ranks) if fits(text))


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """Draw a model of 1 or 2 layers whose widths most cuts divide, and its vocabulary not."""
    family: Family = draw(st.sampled_from(get_args(Family)))
    heads = draw(st.sampled_from([2, 4, 6, 12]))
    fields: dict[str, Any] = {"vocabulary": draw(st.sampled_from([13, 24])), "ffn": 24}
    if family in ("gpt", "llama"):
        fields["kv_heads"] = draw(st.sampled_from([g for g in (1, 2, 4, 6) if heads % g == 0]))
    if family != "bloom":
        fields["tied"] = draw(st.booleans())
    layers = draw(st.integers(1, 2))
    sizes = {"layers": layers, "hidden": 24, "heads": heads, "context": 8}
    return ModelConfig.of(family, **sizes, **fields, **DROPOUTS)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a model, a number of devices, and a sequence for every operator."""
    model, ranks = draw(models()), draw(st.sampled_from([2, 3, 4, 6, 8]))
    one = replace(model, layers=1)
    sequences = {
        operator.name: draw(
            st.sampled_from(fitting(one, ranks, operator.name.replace(".1.", ".0.")))
        )
        for operator in operators(model)
    }
    try:
        return Plan(model=model, ranks=ranks, sequences=sequences)
    except PlanError:  # cuts of neighbours that have no common multiple in the columns
        reject()


@st.composite
def planned_steps(draw: st.DrawFn) -> tuple[Plan, int, int]:
    """Draw a plan and sequences that it takes; half of them parts of one on a device, if it can."""
    plan = draw(plans())
    steps = [
        (batch, positions)
        for batch in range(1, 9)
        for positions in range(1, plan.model.context + 1)
        if batch * positions <= 24 and plan.row_cuts.refusal(batch, positions) is None
    ]
    slices = max(plan.row_cuts.attention.values())
    parted = [step for step in steps if step[0] < slices]
    batch, positions = draw(st.one_of(st.sampled_from(parted or steps), st.sampled_from(steps)))
    return plan, batch, positions
