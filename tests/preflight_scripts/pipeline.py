"""Two training steps of a pipeline; shapes are inferred by messages between the stages."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}["1f1b"]
schedule = kind(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
data, target = torch.randn(8, 8), torch.randn(8, 8)
for _ in range(2):
    if rank == 0:
        schedule.step(data)
    elif rank == ranks - 1:
        losses = []
        schedule.step(target=target, losses=losses)
        print(f"loss {torch.stack(losses).mean().item():.3f}")
    else:
        schedule.step()
