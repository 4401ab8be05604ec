"""DTensor: `parallelize_module` with the styles of PyTorch's tutorial on tensor parallelism."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from benchmarks.executor.module_contender import ModuleContender
from benchmarks.executor.problem import Problem


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
        return part.full_tensor() if isinstance(part, DTensor) else part

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


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
