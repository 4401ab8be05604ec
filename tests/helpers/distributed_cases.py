"""What the ranks of the distributed tests do: each function runs on every rank of one world."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import sent_traffic
import torch
from linear_cases import arrays, mesh_of, message_of

from primepar.distributed import (
    Mesh,
    PartitionedModel,
    full_gradient,
    full_parameter,
    load_parameter,
)
from primepar.models import GPTConfig, ModelConfig
from primepar.plan.presets import uniform_plan

CONFIG = GPTConfig(layers=2, hidden=24, heads=12, context=6, vocabulary=36)
BATCH = 12
NAMES = tuple(CONFIG.parameter_shapes)


PRODUCTS = tuple(
    f"{name}.{phase}"
    for name in CONFIG.linear_shapes
    for phase in ("forward", "backward", "gradient")
)


def batch(step: int = 0, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of one step."""
    generator = np.random.default_rng(step)
    tokens = generator.integers(0, CONFIG.vocabulary, (BATCH, CONFIG.context + 1))
    whole = torch.from_numpy(tokens).to(device)
    return whole[:, :-1], whole[:, 1:]


def partitioned(config: ModelConfig, mesh: Mesh, seed: int = 0) -> PartitionedModel:
    """The model with the mesh's sequence for every linear operator."""
    return PartitionedModel(uniform_plan(config, mesh.sequence), mesh, seed)


def gpt(sequence: str, steps: int = 3) -> dict[str, Any]:
    """Loss and gradients of the first step, then some steps of SGD: losses, parameters, memory."""
    mesh = mesh_of(sequence)
    model = partitioned(CONFIG, mesh, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    gradients: dict[str, torch.Tensor | None] = {}
    for step in range(steps):
        optimizer.zero_grad()
        loss = model.loss(*batch(step, mesh.device))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradients = gradients or {name: full_gradient(model, name) for name in NAMES}
        optimizer.step()
    with torch.no_grad():
        losses.append(model.loss(*batch(steps, mesh.device)).item())
    return {
        "losses": losses,
        "gradients": arrays(gradients),
        "parameters": arrays({name: full_parameter(model, name) for name in NAMES}),
        "blocks": arrays(dict(model.named_parameters())),
    }


def refusals() -> list[str]:
    """What wrong uses of a model are refused with."""
    model = partitioned(
        GPTConfig(layers=1, hidden=4, heads=2, context=2, vocabulary=4), mesh_of("")
    )
    tokens = torch.zeros((2, 3), dtype=torch.int64)
    return [
        message_of(model.loss, tokens, tokens),
        message_of(model.loss, tokens, tokens[:1]),
        message_of(full_gradient, model, "norm.weight"),
        message_of(full_parameter, model, "norm.scale"),
        message_of(load_parameter, model, "norm.weight", np.zeros(5)),
    ]


def traced(sequence: str) -> tuple[Fraction, int, int]:
    """Elements sent in one training step as counted and as traced, and the products seen."""
    mesh = mesh_of(sequence)
    model = partitioned(CONFIG, mesh)
    sent_traffic.clear()
    mesh.start_trace()
    model.loss(*batch()).backward()  # type: ignore[no-untyped-call]
    events = mesh.stop_trace()
    counted = sum(sent_traffic.ELEMENTS.values(), Fraction(0))
    products = sum(event.phase.endswith(PRODUCTS) for event in events)
    return counted, sum(event.elements for event in events), products


def loaded(sequence: str) -> bool:
    """Whether a parameter comes back whole as it was loaded; of use on rank 0 alone."""
    model = partitioned(CONFIG, mesh_of(sequence))
    same = []
    for name in NAMES:
        shape = CONFIG.parameter_shapes[name]
        whole = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
        load_parameter(model, name, whole)
        gathered = full_parameter(model, name)
        same.append(gathered is None or bool((gathered.detach().cpu().numpy() == whole).all()))
    return all(same)


def several(cases: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """Run functions of this module one after another, by name."""
    return [globals()[name](*arguments) for name, arguments in cases]
