"""Two training steps of a stack of layers under FSDP2, with the norm of the gradients."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
                        for _ in range(2)))  # fmt: skip
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    if mesh.get_rank() == 0:
        print(f"step {step} loss {loss.item():.3f} norm {norm.item():.3f}")
    optimizer.step()
    optimizer.zero_grad()
