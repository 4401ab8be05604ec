"""A training step of a small Llama: stages of torch's pipelining, DTensor and FSDP2.

It is a script as torchrun starts it; `python -m benchmarks.preflight` captures it.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

POSITIONS = 16


class StepLayer(nn.Module):
    """Attention and a gated feed-forward block, with norms before them."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        hidden, self.width = heads * width, width
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        y = self.norms[0](x)
        heads = [
            part(y).unflatten(-1, (-1, self.width)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        ]
        attended = nn.functional.scaled_dot_product_attention(*heads)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        y = self.norms[1](x)
        down: torch.Tensor = self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return x + down


def main() -> None:
    """Run one training step on the mesh of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("stages", type=int)
    parser.add_argument("tensor", type=int)
    parser.add_argument("data", type=int)
    parser.add_argument("layers", type=int)
    parser.add_argument("width", type=int)
    asked = parser.parse_args()
    names, sides = ("pipeline", "data", "tensor"), (asked.stages, asked.data, asked.tensor)
    mesh = init_device_mesh("cpu", sides, mesh_dim_names=names)
    group, rank = mesh["pipeline"].get_group(), mesh["pipeline"].get_local_rank()
    torch.manual_seed(rank)
    count, heads = asked.layers // asked.stages, asked.tensor * asked.data
    layers = {f"layer{rank * count + k}": StepLayer(heads, asked.width) for k in range(count)}
    for layer in layers.values():
        parallelize_module(layer, mesh["tensor"], {
            **{name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")},
            **{name: RowwiseParallel() for name in ("o", "down")},
        })  # fmt: skip
        if asked.data > 1:
            fully_shard(layer, mesh=mesh["data"])
    module = nn.Sequential(OrderedDict(layers))
    stage = PipelineStage(module, rank, asked.stages, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, asked.stages, loss_fn=nn.functional.mse_loss)
    data = torch.zeros(asked.stages, POSITIONS, heads * asked.width)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    if rank == 0:
        schedule.step(data)
    elif rank == asked.stages - 1:
        schedule.step(target=data)
    else:
        schedule.step()
    optimizer.step()


if __name__ == "__main__":
    main()
