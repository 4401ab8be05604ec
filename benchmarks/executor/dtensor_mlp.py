"""The MLP by DTensor: `parallelize_module` with column and row styles, as its tutorial does."""

from __future__ import annotations

from typing import cast

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from benchmarks.executor.contender import DW1, DW2, MlpData, Wholes, activation


class _Mlp(nn.Module):
    """h, 4h, h without biases; `weight` of torch's linear is the transposed W."""

    def __init__(self, data: MlpData) -> None:
        super().__init__()
        self.fc1, self.fc2 = (_linear(weight) for weight in (data.w1, data.w2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(activation(self.fc1(x)))  # type: ignore[no-any-return]


def _linear(weight: torch.Tensor) -> nn.Linear:
    inputs, outputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
    return layer


class DTensorMlp:
    """Activations outside are replicated, or with `sequence` divided by rows."""

    def __init__(self, data: MlpData, sequence: bool) -> None:
        self.name = "dtensor-sp" if sequence else "dtensor"
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        placement = Shard(0) if sequence else Replicate()
        styles: dict[str, ParallelStyle] = {
            "fc1": ColwiseParallel(input_layouts=placement),
            "fc2": RowwiseParallel(output_layouts=placement),
        }
        self.placement, self.mesh = placement, mesh
        self.module = parallelize_module(_Mlp(data), mesh, styles)
        x, dy = (self._part(whole) for whole in (data.x, data.dy))
        self.x, self.dy = x.requires_grad_(), dy

    def _part(self, whole: torch.Tensor) -> torch.Tensor:
        if isinstance(self.placement, Shard):
            return whole.chunk(self.mesh.size())[self.mesh.get_local_rank()].clone()
        return whole.clone()

    def step(self) -> None:
        self.x.grad = None
        self.module.zero_grad()
        self.y = self.module(self.x)
        torch.autograd.backward(self.y, self.dy)

    def wholes(self) -> Wholes:
        assert self.x.grad is not None
        y, dx = (
            DTensor.from_local(part.detach(), self.mesh, [self.placement]).full_tensor()
            for part in (self.y, self.x.grad)
        )
        dw1, dw2 = (
            cast(DTensor, self.module.get_parameter(f"{name}.weight").grad).full_tensor().T
            for name in ("fc1", "fc2")
        )
        return {"y": y, "dx": dx, DW1: dw1, DW2: dw2}
