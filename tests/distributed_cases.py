"""What the ranks of the distributed tests do: each function runs on every rank of one world."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from primepar.distributed import (
    GPT,
    Mesh,
    PartitionedLinear,
    full_gradient,
    full_parameter,
    gather_tensor,
    load_parameter,
    scatter_tensor,
)
from primepar.errors import PrimeParError
from primepar.models import GPTConfig
from primepar.partition import parse_sequence
from primepar.schedule import Element, Layout, Primitive, Sequence
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.program import AllGather, Compute, ReduceScatter

Arrays = dict[str, NDArray[Any]]
M, N, K = 12, 24, 36
CONFIG = GPTConfig(layers=2, hidden=24, heads=12, context=6, vocabulary=36)
BATCH = 12
NAMES = tuple(CONFIG.parameter_shapes)


PRODUCTS = tuple(
    f"{name}.{phase}" for name in CONFIG.linear_shapes for phase in ("forward", "backward", "gradient")
)


class Sharded(Primitive):
    """Rows are cut; the weight rests in columns and is gathered, so O is p blocks side by side."""

    axes = ("d",)
    label = "F"

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(M=d)

    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        return dict(K=d) if tensor == "W" else dict(M=d)


class Turned(Primitive):
    """Rows are cut; the input rests in columns, the weight in columns of its own."""

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
    on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else "cpu"
    return Mesh(sequence_of(sequence), device, torch.float64)


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
    mesh = mesh_of(sequence)
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
    return {"arrays": arrays(gathered), "sent": sent}


def pools(sequence: str, source: Layout | None = None) -> list[tuple[int, int]]:
    """Buffers made and idle after each of five training steps with an evaluation between."""
    mesh = mesh_of(sequence)
    layer = PartitionedLinear(mesh, whole_tensors()["W"], source)
    counts = []
    for _ in range(5):
        linear_step(layer)
        evaluate(layer)
        counts.append((mesh.pool.created, mesh.pool.idle))
    return counts


def evaluate(layer: PartitionedLinear) -> torch.Tensor:
    """Forward without gradients."""
    x = scatter_tensor(layer.mesh, layer.source, whole_tensors()["I"])
    with torch.no_grad():
        output: torch.Tensor = layer(x)
    return output


def evaluation(sequence: str) -> dict[str, Any]:
    """An evaluation keeps the weight where it is, and gives what training gives."""
    mesh = mesh_of(sequence)
    layer = PartitionedLinear(mesh, whole_tensors()["W"])
    before = layer.weight.data_ptr()
    evaluated = evaluate(layer)
    stayed = layer.weight.data_ptr() == before
    trained, _ = linear_step(layer)
    return {"stayed": stayed, "equal": torch.equal(evaluated, trained)}


def order(sequence: str) -> dict[str, Any]:
    """The messages of phases that come in the wrong order, and the way out of one of them."""
    mesh = mesh_of(sequence)
    layer = PartitionedLinear(mesh, whole_tensors()["W"], name="blocks.0.fc1")
    whole = whole_tensors()
    home = layer.weight.detach().clone()
    x = scatter_tensor(mesh, layer.source, whole["I"])
    output = layer(x)
    messages = [message_of(layer, x), message_of(evaluate, layer)]
    output.sum().backward(retain_graph=True)
    messages.append(message_of(output.sum().backward))
    given_up = layer(x)
    layer.return_home()
    messages.append(message_of(given_up.sum().backward))
    messages.append(message_of(linear_step, layer))
    return {"messages": messages, "home": torch.equal(layer.weight, home)}


def at_home(sequence: str) -> dict[str, Any]:
    """A weight that stays: two forwards before their backwards, and what is refused."""
    mesh = mesh_of(sequence)
    layer = PartitionedLinear(mesh, whole_tensors()["W"], name="blocks.0.fc1")
    whole, before = whole_tensors(), layer.weight.data_ptr()
    dO = scatter_tensor(mesh, layer.output, whole["dO"])
    inputs = [scatter_tensor(mesh, layer.source, whole["I"]).requires_grad_() for _ in range(2)]
    outputs = [layer(x) for x in inputs]
    for output in outputs:
        output.backward(dO, retain_graph=True)
    gradients = [x.grad for x in inputs if x.grad is not None]
    again = message_of(outputs[0].backward, dO)
    assert layer.weight.grad is not None
    twice = gather_tensor(mesh, layer.home, layer.weight.grad)
    return {
        "equal": all(torch.equal(gradient, gradients[0]) for gradient in gradients),
        "twice": None if twice is None else twice.cpu().numpy(),
        "again": again,
        "stayed": (layer.weight.data_ptr() == before, layer.away),
        "changed": _changed(layer),
    }


def _changed(layer: PartitionedLinear) -> str:
    """What torch says of a weight that is another one in backward than in forward."""
    output = layer(scatter_tensor(layer.mesh, layer.source, whole_tensors()["I"]))
    with torch.no_grad():
        layer.weight.add_(1)
    try:
        output.sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def fused(sequence: str) -> list[list[tuple[str, int]]]:
    """Of forward, and of backward with gradient: what each step does, and how much at once."""
    mesh = mesh_of(sequence)
    layer = PartitionedLinear(mesh, whole_tensors()["W"])
    schedules = layer._schedules(scatter_tensor(mesh, layer.source, whole_tensors()["I"]))
    counted = Compute | AllGather | ReduceScatter
    return [
        [
            (str(step.instructions[0].__struct_config__.tag), len(step.instructions))
            for step in executor._steps
            if step.instructions and isinstance(step.instructions[0], counted)
        ]
        for executor in (schedules.forward, schedules.backward)
    ]


def message_of(work: Any, *arguments: Any) -> str:
    """The message of the error that a call raises."""
    try:
        work(*arguments)
    except PrimeParError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def batch(step: int = 0, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of one step."""
    generator = np.random.default_rng(step)
    tokens = generator.integers(0, CONFIG.vocabulary, (BATCH, CONFIG.context + 1))
    whole = torch.from_numpy(tokens).to(device)
    return whole[:, :-1], whole[:, 1:]


def gpt(sequence: str, steps: int = 3) -> dict[str, Any]:
    """Loss and gradients of the first step, then some steps of SGD: losses, parameters, buffers."""
    mesh = mesh_of(sequence)
    model = GPT(CONFIG, mesh, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, counts = [], []
    gradients: dict[str, torch.Tensor | None] = {}
    for step in range(steps):
        optimizer.zero_grad()
        loss = model.loss(*batch(step, mesh.device))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradients = gradients or {name: full_gradient(model, name) for name in NAMES}
        optimizer.step()
        counts.append((mesh.pool.created, mesh.pool.idle))
    with torch.no_grad():
        losses.append(model.loss(*batch(steps, mesh.device)).item())
    return {
        "losses": losses,
        "gradients": arrays(gradients),
        "parameters": arrays({name: full_parameter(model, name) for name in NAMES}),
        "blocks": arrays(dict(model.named_parameters())),
        "counts": counts,
    }


def arrays(tensors: dict[str, torch.Tensor | None]) -> Arrays:
    """Tensors that are there, as arrays of their own."""
    return {
        name: tensor.detach().cpu().numpy().copy()
        for name, tensor in tensors.items()
        if tensor is not None
    }


def refusals(sequence: str) -> list[str]:
    """What a model that the mesh cannot run, and a batch that it cannot cut, are refused with."""
    mesh = mesh_of(sequence)
    configs = [
        GPTConfig(layers=1, hidden=9, heads=3, vocabulary=4),
        GPTConfig(layers=1, hidden=6, heads=3, vocabulary=4),
        GPTConfig(layers=1, hidden=4, heads=2, vocabulary=5),
    ]
    messages = [message_of(GPT, config, mesh) for config in configs]
    model = GPT(GPTConfig(layers=1, hidden=4, heads=2, context=2, vocabulary=4), mesh)
    tokens = torch.zeros((3, 2), dtype=torch.int64)
    with torch.no_grad():
        messages += [message_of(model.loss, tokens, tokens)]
    tokens = torch.zeros((2, 3), dtype=torch.int64)
    messages += [message_of(model.loss, tokens, tokens)]
    messages += [message_of(model.loss, tokens, tokens[:1])]
    messages += [message_of(full_gradient, model, "norm.weight")]
    messages += [message_of(full_parameter, model, "norm.scale")]
    messages += [message_of(load_parameter, model, "norm.weight", np.zeros(5))]
    return messages


def unfit(sequence: str) -> str:
    """What a layer on a mesh that cannot run it is refused with; nothing is sent for it."""
    mesh = mesh_of(sequence)
    return message_of(PartitionedLinear, mesh, whole_tensors()["W"])


def unfit_gpt(sequence: str) -> str:
    """What a model on a mesh that cannot run it is refused with."""
    return message_of(GPT, CONFIG, mesh_of(sequence))


def traced(sequence: str) -> tuple[Fraction, int, int]:
    """Elements sent in one training step as counted and as traced, and the products seen."""
    mesh = mesh_of(sequence)
    model = GPT(CONFIG, mesh)
    mesh.start_trace()
    model.loss(*batch()).backward()  # type: ignore[no-untyped-call]
    events = mesh.stop_trace()
    counted = sum(mesh.traffic.elements.values(), Fraction(0))
    products = sum(event.phase.endswith(PRODUCTS) for event in events)
    return counted, sum(event.elements for event in events), products


def loaded(sequence: str) -> bool:
    """Whether a parameter comes back whole as it was loaded; of use on rank 0 alone."""
    model = GPT(CONFIG, mesh_of(sequence))
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
