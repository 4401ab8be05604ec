"""Each rank passes a block to its right neighbour; every second rank receives first."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
mine, theirs = torch.ones(4), torch.empty(4)
if rank % 2 == 0:
    dist.send(mine, (rank + 1) % ranks)
    dist.recv(theirs, (rank - 1) % ranks)
else:
    dist.recv(theirs, (rank - 1) % ranks)
    dist.send(mine, (rank + 1) % ranks)
total = mine + theirs
dist.all_reduce(total)
print(f"rank {rank} has {total.sum().item()}")
dist.destroy_process_group()
