"""The MLP of two `PartitionedLinear` modules under a preset."""

from __future__ import annotations

import torch

from benchmarks.executor.contender import Wholes
from benchmarks.executor.planned import PlannedPart
from benchmarks.executor.problem import Problem
from benchmarks.executor.transformer import activation
from primepar.distributed import Mesh, PartitionedLinear, gather_tensor, scatter_tensor
from primepar.partition import parse_sequence
from primepar.schedule import Layout

FC1, FC2 = "blocks.0.fc1.weight", "blocks.0.fc2.weight"


class ModuleMlp:
    """The output of fc2 has the layout of the input of fc1, as in a stack of blocks."""

    def __init__(self, problem: Problem, planned: PlannedPart) -> None:
        self.name = f"{planned.name} (modules)"
        tensors, plan = problem.tensors(), planned.plan
        first, second = (
            Mesh(parse_sequence(str(plan.sequence(f"blocks.0.{operator}"))))
            for operator in ("fc1", "fc2")
        )
        self.fc2 = PartitionedLinear(second, tensors[FC2], _output(first), name="fc2")
        self.fc1 = PartitionedLinear(first, tensors[FC1], self.fc2.output, name="fc1")
        x, self.dy = (
            scatter_tensor(first, self.fc1.source, part) for part in (tensors["x"], tensors["dy"])
        )
        self.x = x.requires_grad_()
        self.y: torch.Tensor | None = None

    def resident(self) -> list[torch.Tensor]:
        return [self.x, self.dy, self.fc1.weight, self.fc2.weight]

    def step(self) -> None:
        self.x.grad = self.fc1.weight.grad = self.fc2.weight.grad = self.y = None
        self.y = self.fc2(activation(self.fc1(self.x)))
        self.y.backward(self.dy)

    def wholes(self) -> Wholes:
        assert self.x.grad is not None
        outside = self.fc1.source
        return {
            "y": self._whole(outside, self.y),
            "dx": self._whole(outside, self.x.grad),
            f"d{FC1}": self._whole(self.fc1.home, self.fc1.weight.grad),
            f"d{FC2}": self._whole(self.fc2.home, self.fc2.weight.grad),
        }

    def _whole(self, layout: Layout, part: torch.Tensor | None) -> torch.Tensor:
        whole = gather_tensor(self.fc1.mesh, layout, part)
        return torch.empty(0) if whole is None else whole


def _output(mesh: Mesh) -> Layout:
    from primepar.operators.single_operator import resident_layout

    return resident_layout(mesh.movement, "forward", "O", last=True)
