"""The MLP of two `PartitionedLinear` modules under a preset."""

from __future__ import annotations

import torch

from benchmarks.executor.contender import DW1, DW2, MlpData, Wholes, activation
from primepar.distributed import Mesh, PartitionedLinear, gather_tensor, scatter_tensor
from primepar.partition import parse_sequence
from primepar.plan import Plan
from primepar.schedule import Layout


class ModuleMlp:
    """The output of fc2 has the layout of the input of fc1, as in a stack of blocks."""

    def __init__(self, data: MlpData, plan_name: str, plan: Plan) -> None:
        self.name = f"{plan_name} (modules)"
        first, second = (
            Mesh(parse_sequence(str(plan.sequence(f"blocks.0.{operator}"))))
            for operator in ("fc1", "fc2")
        )
        self.fc2 = PartitionedLinear(second, data.w2, _output(first), name="fc2")
        self.fc1 = PartitionedLinear(first, data.w1, self.fc2.output, name="fc1")
        x, self.dy = (scatter_tensor(first, self.fc1.source, part) for part in (data.x, data.dy))
        self.x = x.requires_grad_()

    def step(self) -> None:
        self.x.grad = self.fc1.weight.grad = self.fc2.weight.grad = None
        self.y = self.fc2(activation(self.fc1(self.x)))
        self.y.backward(self.dy)

    def wholes(self) -> Wholes:
        assert self.x.grad is not None
        outside = self.fc1.source
        return {
            "y": self._whole(outside, self.y),
            "dx": self._whole(outside, self.x.grad),
            DW1: self._whole(self.fc1.home, self.fc1.weight.grad),
            DW2: self._whole(self.fc2.home, self.fc2.weight.grad),
        }

    def _whole(self, layout: Layout, part: torch.Tensor | None) -> torch.Tensor:
        whole = gather_tensor(self.fc1.mesh, layout, part)
        return torch.empty(0) if whole is None else whole


def _output(mesh: Mesh) -> Layout:
    from primepar.operators.single_operator import resident_layout

    return resident_layout(mesh.movement, "forward", "O", last=True)
