"""One step of a torch schedule with two stages on each rank: `python schedules.py NAME [defer]`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2 * ranks)]
places = [rank, 2 * ranks - 1 - rank if "V" in sys.argv[1] else rank + ranks]
stages = [PipelineStage(layers[one], one, 2 * ranks, torch.device("cpu")) for one in places]
options = {"defer_pp_recv": True} if "defer" in sys.argv else {}
schedule = getattr(schedules, "Schedule" + sys.argv[1])(
    stages, 4, loss_fn=nn.functional.mse_loss, **options
)
x, target = torch.randn(16, 8), torch.randn(16, 8)
schedule.step(*((x,) if rank == 0 else ()), target=target if 2 * ranks - 1 in places else None)
