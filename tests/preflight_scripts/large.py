"""A model that a laptop would compute for minutes, in data parallel."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8192, 16384), nn.GELU(), nn.Linear(16384, 8192))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for _ in range(2):
    loss = model(torch.randn(1024, 8192)).square().mean()
    lasting = bool(loss < 9)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
