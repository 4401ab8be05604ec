"""What the ranks of the distributed tests do: each function runs on every rank of one world."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from primepar.distributed import (
    GPT,
    Mesh,
    PartitionedLinear,
    full_gradient,
    full_parameter,
    gather_tensor,
    scatter_tensor,
)
from primepar.errors import PrimeParError
from primepar.models import GPTConfig
from primepar.partition import parse_sequence
from primepar.schedule import Layout

Arrays = dict[str, NDArray[Any]]
M, N, K = 12, 24, 36
CONFIG = GPTConfig(layers=2, hidden=24, heads=12, context=6, vocabulary=36)
BATCH = 12


def whole_tensors() -> dict[str, torch.Tensor]:
    """Integer-valued tensors of one linear operator, the same on every rank."""
    generator = np.random.default_rng(0)
    shapes = {"I": (M, N), "W": (N, K), "dO": (M, K)}
    return {
        name: torch.from_numpy(generator.integers(-4, 5, shape).astype(np.float64))
        for name, shape in shapes.items()
    }


def dense_tensors() -> Arrays:
    """What one device makes of them."""
    I, W, dO = (tensor.numpy() for tensor in whole_tensors().values())
    return {"O": I @ W, "dI": dO @ W.T, "dW": I.T @ dO, "W": W}


def linear_step(layer: PartitionedLinear) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward of one layer on this rank's blocks: its O and its dI."""
    whole = whole_tensors()
    x = scatter_tensor(layer.mesh, layer.source, whole["I"]).requires_grad_()
    output = layer(x)
    output.backward(scatter_tensor(layer.mesh, layer.output, whole["dO"]))
    assert x.grad is not None
    return output.detach(), x.grad


def linear(sequence: str, source: Layout | None = None) -> dict[str, Any]:
    """One training step of one layer: every tensor gathered to rank 0, and what was sent."""
    mesh = Mesh(parse_sequence(sequence), dtype=torch.float64)
    layer = PartitionedLinear(mesh, whole_tensors()["W"], source)
    output, dI = linear_step(layer)
    sent = dict(mesh.traffic.elements)
    assert layer.weight.grad is not None
    blocks = {
        "O": (layer.output, output),
        "dI": (layer.source, dI),
        "dW": (layer.home, layer.weight.grad),
        "W": (layer.home, layer.weight),
    }
    gathered = {name: gather_tensor(mesh, *block) for name, block in blocks.items()}
    arrays = {name: whole.numpy() for name, whole in gathered.items() if whole is not None}
    return {"arrays": arrays, "sent": sent, "bytes": dict(mesh.traffic.bytes)}


def pools(sequence: str) -> dict[str, Any]:
    """Buffers made and idle after each of five training steps, the last with an evaluation."""
    mesh = Mesh(parse_sequence(sequence), dtype=torch.float64)
    layer = PartitionedLinear(mesh, whole_tensors()["W"])
    counts = []
    for step in range(5):
        linear_step(layer)
        if step == 4:
            evaluate(layer)
        counts.append((mesh.pool.created, mesh.pool.idle))
    return {"counts": counts}


def evaluate(layer: PartitionedLinear) -> torch.Tensor:
    """Forward without gradients."""
    x = scatter_tensor(layer.mesh, layer.source, whole_tensors()["I"])
    with torch.no_grad():
        output: torch.Tensor = layer(x)
    return output


def evaluation(sequence: str) -> dict[str, Any]:
    """An evaluation keeps the weight where it is, and gives what training gives."""
    mesh = Mesh(parse_sequence(sequence), dtype=torch.float64)
    layer = PartitionedLinear(mesh, whole_tensors()["W"])
    before = layer.weight.data_ptr()
    evaluated = evaluate(layer)
    stayed = layer.weight.data_ptr() == before
    trained, _ = linear_step(layer)
    return {"stayed": stayed, "equal": torch.equal(evaluated, trained)}


def order(sequence: str) -> dict[str, Any]:
    """The messages of phases that come in the wrong order, and the way out of one of them."""
    mesh = Mesh(parse_sequence(sequence), dtype=torch.float64)
    layer = PartitionedLinear(mesh, whole_tensors()["W"], name="blocks.0.fc1")
    whole = whole_tensors()
    home = layer.weight.detach().clone()
    x = scatter_tensor(mesh, layer.source, whole["I"])
    output = layer(x)
    messages = [message_of(layer, x), message_of(evaluate, layer)]
    output.sum().backward(retain_graph=True)
    messages.append(message_of(output.sum().backward))
    layer(x)
    layer.return_home()
    return {"messages": messages, "home": torch.equal(layer.weight, home)}


def message_of(work: Any, *arguments: Any) -> str:
    """The message of the error that a call raises."""
    try:
        work(*arguments)
    except PrimeParError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def batch(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of one step."""
    generator = np.random.default_rng(step)
    tokens = generator.integers(0, CONFIG.vocabulary, (BATCH, CONFIG.context + 1))
    whole = torch.from_numpy(tokens)
    return whole[:, :-1], whole[:, 1:]


def gpt(sequence: str, steps: int = 2) -> dict[str, Any]:
    """Loss and gradients of the first step, then some steps of SGD: losses, parameters, buffers."""
    mesh = Mesh(parse_sequence(sequence), dtype=torch.float64)
    model = GPT(CONFIG, mesh, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, gradients, made, idle = [], {}, [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model.loss(*batch(step))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        if step == 0:
            gradients = {name: full_gradient(model, name) for name in CONFIG.parameter_shapes}
        optimizer.step()
        made.append(mesh.pool.created)
        idle.append(mesh.pool.idle)
    with torch.no_grad():
        losses.append(model.loss(*batch(steps)).item())
    parameters = {name: full_parameter(model, name) for name in CONFIG.parameter_shapes}
    blocks = {name: value.detach().numpy() for name, value in model.named_parameters()}
    largest = max(value.numel() for value in model.parameters())
    return {
        "losses": losses,
        "gradients": {k: v.numpy() for k, v in gradients.items() if v is not None},
        "parameters": {k: v.detach().numpy() for k, v in parameters.items() if v is not None},
        "blocks": blocks if len(blocks) and mesh.ranks <= 2 else {},
        "made": made,
        "idle": idle,
        "largest": largest,
        "sent": {kind: Fraction(count) for kind, count in mesh.traffic.elements.items()},
    }


def several(cases: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """Run functions of this module one after another, by name."""
    return [globals()[name](*arguments) for name, arguments in cases]
