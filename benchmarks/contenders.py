"""What is compared: forward and backward of one problem, each by one library in one partition.

- the floors, plain modules that do not communicate: this rank's rows, or this rank's columns;
- Megatron's partition by hand, in plain `torch.distributed`, without sequence parallelism and with
  it, where the gathered input of a layer is gathered again in backward, or kept;
- DDP and FSDP2, torch's data parallelism;
- DTensor, by `parallelize_module` with the styles of PyTorch's tutorial on tensor parallelism;
- the presets of the library, lowered once before the ranks start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import torch
from msgspec import Struct
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.problem import Between, Problem, Wholes, cross_entropy, full_name, same, turned
from primepar.distributed import (
    Executor,
    Mesh,
    PartitionedModel,
    full_gradient,
    gather_tensor,
    load_parameter,
    scatter_tensor,
)
from primepar.distributed.runtime.scatter_gather import Parts
from primepar.errors import PrimeParError
from primepar.models import ModelConfig
from primepar.operators import StepPart, StepSettings, lower_part, lower_step
from primepar.operators.builder import View
from primepar.plan import PRESETS, Plan, preset_plan
from primepar.schedule import Layout, Program
from primepar.schedule.program import Collective, Compute, ISend, Recv, Send, Wait

BOUND = 1e-4
"""Largest error over the largest element: sums of some thousand float32 products in any order."""
CUT = {"qkv": 0, "fc1": 0, "proj": 1, "fc2": 1}
"""Linear operator -> the dim of torch's weight [K, N] that is divided."""


class Contender(Protocol):
    """One rank's part. Its input, output gradient and parameters are there from the start.

    `step` does one forward and backward, and keeps nothing of the step before. `resident` are this
    rank's input, output gradient and parameters. `wholes` gathers what the last step computed: rank
    0 gets the full tensors, others may get anything.
    """

    name: str

    def step(self) -> None: ...

    def resident(self) -> Iterable[torch.Tensor]: ...

    def wholes(self) -> Wholes: ...


def check(contender: Contender, expected: Wholes | None) -> None:
    """Run a step and compare it on rank 0 with `expected`. Raises `SystemExit` if it is wrong."""
    contender.step()
    got = contender.wholes()
    if dist.get_rank() or expected is None:
        return
    if got.keys() != expected.keys():
        raise SystemExit(f"{contender.name}: expected {sorted(expected)}, got {sorted(got)}")
    for name, whole in expected.items():
        difference = got[name].double().reshape(whole.shape) - whole
        error = float(difference.abs().max() / whole.abs().max())
        if not error <= BOUND:
            raise SystemExit(f"{contender.name}: {name} is off by {error:.1e} of its largest")


# Plain modules: the floors, and Megatron's partition


class Around(torch.autograd.Function):
    """A call forward, and its adjoint backward.

    An all-reduce and passing on are adjoint: Megatron's f and g. With sequence parallelism a gather
    along a dim and a reduce-scatter are.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Between, back: Between) -> torch.Tensor:
        ctx.back, y = back, there(x)
        if y is x:
            ctx.mark_dirty(x)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(dy), None, None


def around(there: Between, back: Between) -> tuple[Between, Between]:
    """What is before a column linear, and what is after a row linear: its inverse."""
    return (
        lambda x: Around.apply(x, there, back),  # type: ignore[no-untyped-call]
        lambda x: Around.apply(x, back, there),  # type: ignore[no-untyped-call]
    )


def passed(x: torch.Tensor) -> torch.Tensor:
    """The same data."""
    return x.view_as(x)


def summed(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks, in place."""
    x = x.contiguous()
    dist.all_reduce(x)
    return x


def gathered(part: torch.Tensor, dim: int) -> torch.Tensor:
    """The parts of all ranks, concatenated along a dim."""
    part = part.movedim(dim, 0).contiguous()
    whole = part.new_empty(len(part) * dist.get_world_size(), *part.shape[1:])
    dist.all_gather_single(whole, part)
    return whole.movedim(0, dim)


def scattered(whole: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's part of the sum of all ranks, along a dim."""
    whole = whole.movedim(dim, 0).contiguous()
    part = whole.new_empty(len(whole) // dist.get_world_size(), *whole.shape[1:])
    dist.reduce_scatter_single(part, whole)
    return part.movedim(0, dim)


class ModuleContender:
    """A module on this rank; a subclass defines its parts and its communication."""

    name = ""
    losses = 1
    """Parts that the tokens of the loss are divided into."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.rank, self.ranks = problem, dist.get_rank(), dist.get_world_size()
        self.module = self.partitioned()
        self.called = self.wrapped()
        tensors = problem.tensors()
        first, second = ("tokens", "targets") if problem.kind == "gpt" else ("x", "dy")
        self.x, self.dy = (self.share(tensors[name]).clone() for name in (first, second))
        self.x.requires_grad_(problem.kind != "gpt")
        self.y: torch.Tensor | None = None

    def partitioned(self) -> nn.Module:
        """This rank's module."""
        return self.problem.module()

    def wrapped(self) -> nn.Module:
        """What a step calls."""
        return self.module

    def share(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of the input or of the output gradient."""
        return whole

    def restored(self, part: torch.Tensor) -> torch.Tensor:
        """The full tensor of such a part."""
        return part

    def resident(self) -> list[torch.Tensor]:
        return [self.x, self.dy, *self.module.parameters()]

    def step(self) -> None:
        self.x.grad = self.y = None
        self.module.zero_grad()
        if self.problem.kind == "gpt":
            self.y = cross_entropy(self.called(self.x), self.dy) / self.losses
            torch.autograd.backward(self.y)
        else:
            self.y = self.called(self.x)
            torch.autograd.backward(self.y, self.dy)

    def wholes(self) -> Wholes:
        assert self.y is not None
        made: Wholes = {}
        if self.problem.kind == "gpt":
            made["loss"] = self.y.detach()
        else:
            assert self.x.grad is not None
            made = {"y": self.restored(self.y.detach()), "dx": self.restored(self.x.grad)}
        for name, parameter in self.module.named_parameters():
            full = self.problem.prefix + full_name(name)
            assert parameter.grad is not None
            made[f"d{full}"] = turned(full, self.gradient(name, parameter.grad))
        return made

    def gradient(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """The full gradient of a parameter."""
        return part


class RowFloor(ModuleContender):
    """This rank's sequences (or rows), with full weights: their gradients are not summed."""

    name = "floor:rows"

    def share(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.chunk(self.ranks)[self.rank]


class DdpContender(RowFloor):
    """Data parallelism as torch has it: gradients are averaged in its buckets, of 25 MiB."""

    name = "ddp"

    def wrapped(self) -> nn.Module:
        return DistributedDataParallel(self.module, gradient_as_bucket_view=True)

    def restored(self, part: torch.Tensor) -> torch.Tensor:
        return gathered(part, 0)

    def gradient(self, name: str, part: torch.Tensor) -> torch.Tensor:
        return local_or_full(part) * (1 if self.problem.kind == "gpt" else self.ranks)

    def wholes(self) -> Wholes:
        if self.problem.kind == "gpt" and self.y is not None:
            self.y = summed(self.y.detach()) / self.ranks
        return super().wholes()


class FsdpContender(DdpContender):
    """Data parallelism with parameters in shards: FSDP2, a group of them for each layer."""

    name = "fsdp2"

    def wrapped(self) -> nn.Module:
        mesh = init_device_mesh("cpu", (self.ranks,))
        for block in getattr(self.module, "blocks", ()):
            fully_shard(block, mesh=mesh)
        fully_shard(self.module, mesh=mesh)
        return self.module

    def resident(self) -> list[torch.Tensor]:
        return [local(tensor) for tensor in super().resident()]


class ColumnFloor(ModuleContender):
    """The products of Megatron's partition; the partial sums are left as they are."""

    name = "floor:columns"

    def partitioned(self) -> nn.Module:
        return self.cut(self.problem.module())

    def cut(self, module: nn.Module) -> nn.Module:
        """Divide the weights of the linear operators in a block."""
        for name, layer in module.named_modules():
            dim = CUT.get(name.rpartition(".")[2])
            if isinstance(layer, nn.Linear) and dim is not None:
                part = layer.weight.detach().chunk(self.ranks, dim)[self.rank]
                layer.weight = nn.Parameter(part.clone())
        return module

    def gradient(self, name: str, part: torch.Tensor) -> torch.Tensor:
        dim = CUT.get(name.split(".")[-2])
        return part if dim is None else gathered(part, dim)


class MegatronContender(ColumnFloor):
    """Tensor parallelism in one dimension; embeddings, norms and head are replicated."""

    name = "megatron by hand"

    def partitioned(self) -> nn.Module:
        return self.cut(self.problem.module(*around(passed, summed)))


class GatheredTwice(torch.autograd.Function):
    """A column linear of this rank's rows: all are gathered forward, and again in backward.

    So this rank's rows alone are kept for the gradient of the weight (Korthikanti et al., 2022,
    section 4.2.2). Calls and products have the order of Megatron-LM.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dim = dim
        return functional.linear(gathered(x, dim), weight)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        whole = gathered(x, ctx.dim)
        dx = scattered(dy @ weight, ctx.dim)
        return dx, dy.flatten(0, -2).T @ whole.flatten(0, -2), None


class GatheringLinear(nn.Module):
    """Such a layer, with the weight of another one."""

    def __init__(self, weight: torch.Tensor, dim: int) -> None:
        super().__init__()
        self.weight, self.dim = nn.Parameter(weight.detach()), dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apply: Callable[..., torch.Tensor] = GatheredTwice.apply
        return apply(x, self.weight, self.dim)


class SequenceMegatronContender(ColumnFloor):
    """With sequence parallelism: what is replicated there works on this rank's positions here."""

    name = "megatron-sp by hand"
    keeps = False
    """Whether the gathered input of a column linear is kept until backward."""

    def partitioned(self) -> nn.Module:
        dim = self.problem.sequence_dim
        enter, leave = around(partial(gathered, dim=dim), partial(scattered, dim=dim))
        module = self.cut(self.problem.module(enter if self.keeps else same, leave))
        for name, layer in [] if self.keeps else list(module.named_modules()):
            parent, _, last = name.rpartition(".")
            if isinstance(layer, nn.Linear) and CUT.get(last) == 0:
                setattr(module.get_submodule(parent), last, GatheringLinear(layer.weight, dim))
        if self.problem.kind == "gpt":
            self.losses = self.ranks
            module.places = self.share(module.places)  # type: ignore[arg-type]
        names = [name for name, _ in module.named_parameters()]
        self.replicated = [name for name in names if name.split(".")[-2] not in CUT]
        return module

    def share(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.chunk(self.ranks, self.problem.sequence_dim)[self.rank]

    def restored(self, part: torch.Tensor) -> torch.Tensor:
        return gathered(part, self.problem.sequence_dim)

    def step(self) -> None:
        super().step()
        assert self.y is not None
        gradients = [self.module.get_parameter(name).grad for name in self.replicated]
        if self.problem.kind == "gpt":
            gradients.append(self.y.detach())
        tensors = [gradient for gradient in gradients if gradient is not None]
        if tensors:  # all of them in one call
            sums = summed(torch.cat([tensor.flatten() for tensor in tensors]))
            parts = torch.split(sums, [tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))


class KeepingMegatronContender(SequenceMegatronContender):
    """With less bytes for more memory: the gathered inputs are kept, as DTensor does."""

    name = "megatron-sp by hand, kept"
    keeps = True


class DTensorContender(ModuleContender):
    """Activations between the linear operators are replicated."""

    name = "dtensor"
    sequence = False

    def __init__(self, problem: Problem) -> None:
        self.outside = Shard(problem.sequence_dim) if self.sequence else Replicate()
        super().__init__(problem)

    def partitioned(self) -> nn.Module:
        self.mesh = init_device_mesh("cpu", (self.ranks,))
        return parallelize_module(self.problem.module(), self.mesh, self._styles())

    def _styles(self) -> dict[str, ParallelStyle]:
        outside = self.outside
        column = ColwiseParallel(input_layouts=outside)
        row = RowwiseParallel(output_layouts=outside)
        if self.problem.kind == "mlp":
            return {"fc1": column, "fc2": row}
        block: dict[str, ParallelStyle] = {"qkv": column, "proj": row, "fc1": column, "fc2": row}
        if self.sequence:
            norm = SequenceParallel(sequence_dim=self.problem.sequence_dim, use_local_output=True)
            block |= {"norm1": norm, "norm2": norm}
        if self.problem.kind == "block":
            return block
        styles = {
            f"blocks.{layer}.{name}": style
            for layer in range(self.problem.layers)
            for name, style in block.items()
        }
        styles["token"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=outside)
        styles["head"] = ColwiseParallel(
            input_layouts=outside, output_layouts=Shard(-1), use_local_output=False
        )
        if self.sequence:
            styles["position"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=outside)
            styles["norm"] = norm
        return styles

    def share(self, whole: torch.Tensor) -> torch.Tensor:
        if self.sequence and self.problem.kind != "gpt":
            return whole.chunk(self.ranks, self.problem.sequence_dim)[self.rank]
        return whole

    def restored(self, part: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(part, self.mesh, [self.outside]).full_tensor()

    def gradient(self, name: str, part: torch.Tensor) -> torch.Tensor:
        return local_or_full(part)

    def resident(self) -> list[torch.Tensor]:
        return [local(tensor) for tensor in super().resident()]

    def step(self) -> None:
        with loss_parallel() if self.problem.kind == "gpt" else nullcontext():
            super().step()
        for parameter in self.module.parameters():
            gradient = parameter.grad
            if isinstance(gradient, DTensor) and gradient.placements[0].is_partial():
                parameter.grad = gradient.redistribute(placements=[Replicate()])

    def wholes(self) -> dict[str, torch.Tensor]:
        if isinstance(self.y, DTensor):
            self.y = self.y.full_tensor()
        return super().wholes()


class SequenceDTensorContender(DTensorContender):
    """With sequence parallelism: activations between the linear operators are divided by rows."""

    name = "dtensor-sp"
    sequence = True


def local_or_full(part: torch.Tensor) -> torch.Tensor:
    """The full tensor of a DTensor; any other as it is."""
    return part.full_tensor() if isinstance(part, DTensor) else part


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# The presets of the library


class ListFacts(Struct, frozen=True):
    """What the lists of a program have: counts of all ranks together, a step."""

    messages: int
    """Messages between two ranks."""
    collectives: int
    """Calls of collectives, on every member."""
    waits: int
    computes: int


@dataclass(frozen=True)
class PlannedPart:
    """A plan that fits, its program of `StepPart` or `Program` as JSON, and its facts."""

    name: str
    plan: Plan
    content: bytes
    facts: ListFacts


@dataclass(frozen=True)
class Planned:
    """The plans of a case that fit, and why others do not."""

    parts: tuple[PlannedPart, ...]
    left_out: dict[str, str]


def planned(
    model: ModelConfig, ranks: int, batch: int, operators: Iterable[str] | None, names: list[str]
) -> Planned:
    """Lower the presets whose name is in `names`, or all; a step without `operators`."""
    parts: list[PlannedPart] = []
    left_out: dict[str, str] = {}
    for name in names or PRESETS:
        try:
            parts.append(_part(name, preset_plan(name, model, ranks), batch, operators))
        except PrimeParError as error:
            left_out[name] = str(error)
    return Planned(tuple(parts), left_out)


def _part(name: str, plan: Plan, batch: int, operators: Iterable[str] | None) -> PlannedPart:
    positions = plan.model.context
    if operators is None:
        program = lower_step(plan, batch, positions, "gradients")
        return PlannedPart(name, plan, b"", facts(program))
    part = lower_part(plan, operators, batch, positions)
    return PlannedPart(name, plan, msgspec.json.encode(part), facts(part.forward, part.backward))


def facts(*programs: Program) -> ListFacts:
    """Count the instructions of all ranks."""
    counts: Counter[str] = Counter()
    lists = (nodes for program in programs for nodes in program.programs)
    for node in (node for nodes in lists for node in nodes):
        counts["messages"] += isinstance(node, Send | ISend)
        counts["collectives"] += isinstance(node, Collective)
        counts["waits"] += isinstance(node, Wait | Recv)
        counts["computes"] += isinstance(node, Compute)
    return ListFacts(**{name: counts[name] for name in ListFacts.__struct_fields__})


class PartProgram:
    """An MLP or a block; rows are those of all sequences."""

    def __init__(self, problem: Problem, planned: PlannedPart) -> None:
        self.name = planned.name
        self.mesh = Mesh(planned.plan.sequence("head"))
        self.part = msgspec.json.decode(planned.content, type=StepPart)
        wholes = problem.tensors()
        plan, batch = planned.plan, problem.batch
        positions = plan.model.context
        settings = StepSettings(plan.model, batch, positions)
        self.forward, self.backward = (
            Executor(self.mesh, program, settings)
            for program in (self.part.forward, self.part.backward)
        )
        self.blocks: dict[str, torch.Tensor] = {}
        for tensor, layout in self._given().items():
            whole = wholes[tensor]
            whole = whole.flatten(0, -2) if tensor in ("x", "dy") else whole
            part = scatter_tensor(self.mesh, layout, whole)
            blocks = self._parts(tensor, layout, whole.shape).cut(part)
            self.blocks |= {name: block.clone() for name, block in blocks.items()}
        self.results: dict[str, torch.Tensor] = {}

    def _given(self) -> dict[str, Layout]:
        parameters = {name: layout_of(view) for name, view in self.part.parameters.items()}
        return {"x": self.part.source, "dy": self.part.target, **parameters}

    def _parts(self, tensor: str, layout: Layout, shape: tuple[int, ...]) -> Parts:
        return Parts(tensor, layout, self.mesh.rank, tuple(shape))

    def executors(self) -> list[Executor]:
        """The compiled programs."""
        return [self.forward, self.backward]

    def resident(self) -> list[torch.Tensor]:
        return list(self.blocks.values())

    def step(self) -> None:
        self.results.clear()
        kept = self.part.kept[self.mesh.rank]
        held = self.forward({name: self._handed(name) for name in self.forward.initial})
        output = {name: held.pop(name) for name in list(held) if name not in kept}
        held |= {name: self.blocks[name] for name in self.backward.initial if name not in held}
        ended = self.backward(held)
        made = {name: ended.pop(name) for name in list(ended) if not self._is_parameter(name)}
        self.results = output | made
        self.blocks |= ended

    def _handed(self, name: str) -> torch.Tensor:
        """Hand a block over: the step owns the weights, and the caller its input."""
        return self.blocks.pop(name) if self._is_parameter(name) else self.blocks[name]

    def _is_parameter(self, name: str) -> bool:
        return name.partition("[")[0] in self.part.parameters

    def wholes(self) -> Wholes:
        made = {"y": (self.part.y, self.part.target), "dx": (self.part.dx, self.part.source)}
        for name, view in self.part.parameters.items():
            made[f"d{name}"] = f"{name}.grad", layout_of(view)
        return {name: self._whole(*tensor) for name, tensor in made.items()}

    def _whole(self, tensor: str, layout: Layout) -> torch.Tensor:
        cuts = self.part.backward.tensors or {}
        shape = tuple(line[-1] for line in cuts[tensor].cuts)
        part = self._parts(tensor, layout, shape).take(dict(self.results))
        whole = gather_tensor(self.mesh, layout, part)
        return torch.empty(0) if whole is None else whole


def layout_of(view: View) -> Layout:
    """The layout of a tensor that is cut evenly."""
    return Layout(tuple(len(line) - 1 for line in view.cuts), view.held)


class ModelProgram:
    """The program of a step up to the gradients, called as in a user's own loop."""

    def __init__(self, problem: Problem, planned: PlannedPart) -> None:
        self.name = planned.name
        self.model = PartitionedModel(planned.plan, Mesh(planned.plan.sequence("head")))
        tensors = problem.tensors()
        for name in problem.model.parameter_shapes:
            load_parameter(self.model, name, tensors[name])
        self.tokens, self.targets = (tensors[name].clone() for name in ("tokens", "targets"))
        self.loss: torch.Tensor | None = None

    def executors(self) -> list[Executor]:
        """The compiled program of a step up to the gradients."""
        return [self.model._program(self.tokens, "gradients").executor]

    def resident(self) -> list[torch.Tensor]:
        return [self.tokens, self.targets, *self.model.parameters()]

    def step(self) -> None:
        self.loss = None
        self.model.zero_grad()
        self.loss = self.model.loss(self.tokens, self.targets)
        torch.autograd.backward(self.loss)

    def wholes(self) -> Wholes:
        assert self.loss is not None
        made = {"loss": self.loss.detach()}
        for name in self.model.config.parameter_shapes:
            gradient = full_gradient(self.model, name)
            made[f"d{name}"] = torch.empty(0) if gradient is None else gradient
        return made


OTHERS = (
    ColumnFloor, RowFloor, DdpContender, FsdpContender, DTensorContender,
    SequenceDTensorContender, MegatronContender, SequenceMegatronContender,
    KeepingMegatronContender,
)  # fmt: skip
Ours = PartProgram | ModelProgram


def makers(problem: Problem, plans: Planned) -> dict[str, partial[Contender]]:
    """Name -> how to make a contender; a collective call, as is each of them."""
    ours: type[Ours] = ModelProgram if problem.kind == "gpt" else PartProgram
    by_name: dict[str, partial[Any]] = {kind.name: partial(kind, problem) for kind in OTHERS}
    for part in plans.parts:
        by_name[part.name] = partial(ours, problem, part)
    return by_name


def sent_by_program(contender: Contender) -> float | None:
    """Bytes that this rank sends in a step, as its programs count them; None for others."""
    if not isinstance(contender, Ours):
        return None
    runs = contender.executors()
    return float(sum(count * size for run in runs for _, count, size in run.sent))
