"""What the ranks of the tests of half precision do: each function runs on every rank."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sent_traffic
import torch
from linear_layer import LinearLayer

from primepar.distributed import Mesh, gather_tensor, scatter_tensor
from primepar.distributed.runtime.step_programs import StepPrograms, update
from primepar.distributed.runtime.training_state import TrainingState
from primepar.models.dropout import Draw
from primepar.operators import StepInputs
from primepar.partition import parse_sequence
from primepar.plan import Plan

SIZE = 256
Errors = dict[str, float]


def operands() -> dict[str, torch.Tensor]:
    """The tensors of one linear operator in bfloat16, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(SIZE, SIZE, generator=generator).bfloat16() for name in ("I", "W", "dO")
    }


def errors(found: dict[str, torch.Tensor]) -> Errors:
    """Relative errors of O, dI and dW, in the norm of all elements, against float64."""
    I, W, dO = (tensor.double() for tensor in operands().values())
    exact = {"O": I @ W, "dI": dO @ W.T, "dW": I.T @ dO}
    return {
        name: ((found[name].double() - whole).norm() / whole.norm()).item()
        for name, whole in exact.items()
    }


def dense_errors() -> Errors:
    """Those of one device, which rounds each product once."""
    I, W, dO = operands().values()
    return errors({"O": I @ W, "dI": dO @ W.T, "dW": I.T @ dO})


def partitioned(sequence: str, wide: bool) -> dict[str, Any] | None:
    """On rank 0: the errors of a step of one layer, and the bytes that the rank sent in it."""
    mesh = Mesh(parse_sequence(sequence), dtype=torch.bfloat16)
    if not wide:
        mesh.wide_dtype = mesh.dtype
    whole = operands()
    layer = LinearLayer(mesh, whole["W"])
    x = scatter_tensor(mesh, layer.source, whole["I"]).requires_grad_()
    sent_traffic.clear()
    output = layer(x)
    output.backward(scatter_tensor(mesh, layer.output, whole["dO"]))
    sent = {kind: int(count) for kind, count in sent_traffic.BYTES.items()}
    assert x.grad is not None
    assert layer.weight.grad is not None
    parts = {
        "O": (layer.output, output.detach()),
        "dI": (layer.source, x.grad),
        "dW": (layer.home, layer.weight.grad),
    }
    found = {name: gather_tensor(mesh, *part) for name, part in parts.items()}
    if mesh.rank:
        return None
    made = {name: tensor for name, tensor in found.items() if tensor is not None}
    return {"errors": errors(made), "sent": sent}


def all_partitioned(sequences: tuple[str, ...]) -> dict[tuple[str, bool], Any]:
    """Every sequence, with sums in float32 and in half precision."""
    return {
        (sequence, wide): partitioned(sequence, wide)
        for sequence in sequences
        for wide in (True, False)
    }


def stepped(plans: tuple[Plan, ...], batch: int, positions: int) -> list[tuple[float, Fraction]]:
    """The loss of a training step of each plan in bfloat16, and the bytes that this rank counts."""
    results = []
    for plan in plans:
        mesh = Mesh(plan.mesh, dtype=torch.bfloat16)
        run = StepPrograms(plan, mesh).program(batch, positions, "update")
        tokens = torch.arange(batch * (positions + 1)).view(batch, -1) % plan.model.vocabulary
        inputs = StepInputs(Draw(0, 1), 0.01, 1)
        loss, _ = update(run, TrainingState(plan, mesh), tokens[:, :-1], tokens[:, 1:], inputs)
        sent = (elements * itemsize for _, elements, itemsize in run.executor.sent)
        results.append((loss, sum(sent, Fraction(0))))
    return results
