"""Two training steps of data parallel ranks, whose gradients are averaged by hand."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(rank)
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(3, 4, generator=data)).pow(2).mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
    optimizer.step()
