"""Plain torch modules: the floors, which do not communicate, and Megatron's partition by hand."""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn

from benchmarks.executor.collective_functions import (
    EnterCopied,
    EnterGathered,
    LeaveReduced,
    LeaveScattered,
    applied,
    gathered,
)
from benchmarks.executor.contender import Wholes
from benchmarks.executor.problem import Problem
from benchmarks.executor.transformer import cross_entropy, full_name, turned

CUT = {"qkv": 0, "fc1": 0, "proj": 1, "fc2": 1}
"""Linear operator -> the dim of torch's weight [K, N] that is divided."""


class ModuleContender:
    """A module on this rank; a subclass defines its parts and its communication."""

    name = ""
    losses = 1
    """Parts that the tokens of the loss are divided into."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.rank, self.ranks = problem, dist.get_rank(), dist.get_world_size()
        self.module = self.partitioned()
        tensors = problem.tensors()
        first, second = ("tokens", "targets") if problem.kind == "gpt" else ("x", "dy")
        self.x, self.dy = (self.share(tensors[name]).clone() for name in (first, second))
        self.x.requires_grad_(problem.kind != "gpt")
        self.y: torch.Tensor | None = None

    def partitioned(self) -> nn.Module:
        """This rank's module."""
        return self.problem.module()

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
            self.y = cross_entropy(self.module(self.x), self.dy) / self.losses
            torch.autograd.backward(self.y)
        else:
            self.y = self.module(self.x)
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
        return self.cut(
            self.problem.module(
                lambda x: applied(EnterCopied, x), lambda x: applied(LeaveReduced, x)
            )
        )


class SequenceMegatronContender(ColumnFloor):
    """With sequence parallelism: what is replicated there works on this rank's positions here."""

    name = "megatron-sp by hand"

    def partitioned(self) -> nn.Module:
        dim = self.problem.sequence_dim
        module = self.cut(
            self.problem.module(
                lambda x: applied(EnterGathered, x, dim), lambda x: applied(LeaveScattered, x, dim)
            )
        )
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
        self._sum([gradient for gradient in gradients if gradient is not None])

    def _sum(self, tensors: list[torch.Tensor]) -> None:
        """All-reduce tensors together."""
        if not tensors:
            return
        sums = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(sums)
        parts = torch.split(sums, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
