"""What the ranks of the tests of linear operators do: each function runs on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import sent_traffic
import torch
from distributed_ranks import device_of_rank
from linear_layer import LinearLayer
from numpy.typing import NDArray

from primepar.distributed import Mesh, gather_tensor, scatter_tensor
from primepar.errors import PrimeParError
from primepar.partition import parse_sequence
from primepar.schedule import Element, Layout, Primitive, Sequence
from primepar.schedule.primitive import Slices, Value

Arrays = dict[str, NDArray[Any]]
M, N, K = 12, 24, 36


class Sharded(Primitive):
    """Rows are sharded; W is resident in column shards and gathered, so O has p adjacent blocks."""

    axes = ("d",)
    label = "F"

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(M=d)

    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        return dict(K=d) if tensor == "W" else dict(M=d)


class Turned(Primitive):
    """Rows are sharded; I is resident in column shards, W in column shards too."""

    axes = ("d",)
    label = "H"

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(M=d)

    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        return {"I": dict(N=d), "W": dict(K=d), "O": dict(M=d)}[tensor]


OURS: dict[str, type[Primitive]] = {"F": Sharded, "H": Turned}


def sequence_of(text: str) -> Sequence:
    """A sequence in which `F2` is `Sharded`, and `H2` `Turned`."""
    tokens = text.split(",")
    return Sequence(
        tuple(
            Element(OURS[token[0]](), (int(token[1:]),))
            if token[0] in OURS
            else parse_sequence(token).elements[0]
            for token in tokens
            if token
        )
    )


def mesh_of(sequence: str) -> Mesh:
    """A mesh in float64, on this rank's GPU where NCCL joins the ranks."""
    return Mesh(sequence_of(sequence), device_of_rank(), torch.float64)


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


def linear_step(layer: LinearLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward of one layer on this rank's blocks: its O and its dI."""
    whole = whole_tensors()
    x = scatter_tensor(layer.mesh, layer.source, whole["I"]).requires_grad_()
    output = layer(x)
    output.backward(scatter_tensor(layer.mesh, layer.output, whole["dO"]))
    assert x.grad is not None
    return output.detach(), x.grad


def linear(sequence: str, source: Layout | None = None) -> dict[str, Any]:
    """What one layer does in steps, in evaluations, and in forwards before their backwards.

    Of the first step every tensor is gathered to rank 0.
    """
    mesh = mesh_of(sequence)
    layer = LinearLayer(mesh, whole_tensors()["W"], source)
    before = layer.weight.data_ptr()
    sent_traffic.clear()
    output, dI = linear_step(layer)
    sent = dict(sent_traffic.ELEMENTS)
    assert layer.weight.grad is not None
    blocks = {
        "O": (layer.output, output),
        "dI": (layer.source, dI),
        "dW": (layer.home, layer.weight.grad),
        "W": (layer.home, layer.weight),
    }
    gathered = arrays({name: gather_tensor(mesh, *block) for name, block in blocks.items()})
    evaluations = [torch.equal(evaluate(layer), linear_step(layer)[0]) for _ in range(3)]
    layer.weight.grad = None
    return {
        "arrays": gathered, "sent": sent, "evaluations": evaluations,
        **twice(layer), "stayed": layer.weight.data_ptr() == before, "changed": _changed(layer),
    }  # fmt: skip


def evaluate(layer: LinearLayer) -> torch.Tensor:
    """Forward without gradients."""
    x = scatter_tensor(layer.mesh, layer.source, whole_tensors()["I"])
    with torch.no_grad():
        output: torch.Tensor = layer(x)
    return output


def twice(layer: LinearLayer) -> dict[str, Any]:
    """Two forwards before their backwards, each of these twice."""
    mesh, whole = layer.mesh, whole_tensors()
    dO = scatter_tensor(mesh, layer.output, whole["dO"])
    inputs = [scatter_tensor(mesh, layer.source, whole["I"]).requires_grad_() for _ in range(2)]
    outputs = [layer(x) for x in inputs]
    for output in outputs:
        output.backward(dO, retain_graph=True)
        output.backward(dO)
    gradients = [x.grad for x in inputs if x.grad is not None]
    assert layer.weight.grad is not None
    sums = {
        "dW": gather_tensor(mesh, layer.home, layer.weight.grad),
        "dI": gather_tensor(mesh, layer.source, gradients[1]),
    }
    return {"equal": torch.equal(*gradients), "sums": arrays(sums)}


def _changed(layer: LinearLayer) -> str:
    """The error of torch for a weight that was changed between forward and backward."""
    output = layer(scatter_tensor(layer.mesh, layer.source, whole_tensors()["I"]))
    with torch.no_grad():
        layer.weight.add_(1)
    try:
        output.sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def message_of(work: Any, *arguments: Any) -> str:
    """The message of the error that a call raises."""
    try:
        work(*arguments)
    except PrimeParError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def arrays(tensors: dict[str, torch.Tensor | None]) -> Arrays:
    """Tensors that are there, as arrays of their own."""
    return {
        name: tensor.detach().cpu().numpy().copy()
        for name, tensor in tensors.items()
        if tensor is not None
    }


def unfit(sequence: str) -> str:
    """What a layer on a mesh that cannot run it is refused with; nothing is sent for it."""
    mesh = mesh_of(sequence)
    return message_of(LinearLayer, mesh, whole_tensors()["W"])


def several(cases: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """Run functions of this module one after another, by name."""
    return [globals()[name](*arguments) for name, arguments in cases]
