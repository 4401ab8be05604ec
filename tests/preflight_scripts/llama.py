"""A training step of a small Llama under DTensor's tensor and sequence parallelism."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

HIDDEN, HEADS, TOKENS, WORDS = 32, 8, 16, 64
ranks = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part(x).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2)
                 for part in (self.q, self.k, self.v)]  # fmt: skip
        out = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o(out.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention = Attention()
        self.gate, self.up = nn.Linear(HIDDEN, 64, bias=False), nn.Linear(HIDDEN, 64, bias=False)
        self.down = nn.Linear(64, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


torch.manual_seed(0)
model = Llama(layers=2)
parallelize_module(model, mesh, {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
})  # fmt: skip
for block in model.layers:
    parallelize_module(block, mesh, {
        "norm1": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),),
                                        desired_input_layouts=(Replicate(),)),
        "attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "gate": ColwiseParallel(input_layouts=Shard(1)),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    })  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(WORDS, (2, TOKENS + 1))
logits = model(tokens[:, :-1])
loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
loss.backward()
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
if mesh.get_rank() == 0:
    print(f"loss {loss.item():.3f} norm {norm.item():.3f}")
optimizer.step()
