"""A step of data parallelism on GPUs, with mixed precision, and what a script asks of a GPU."""

import copy
import io
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

assert torch.cuda.is_available()
assert torch.accelerator.is_available()
rank = int(os.environ["LOCAL_RANK"])
assert torch.cuda.device_count() == 2
device = torch.device("cuda", rank)
torch.cuda.set_device(rank)
torch.backends.cudnn.benchmark = True
assert torch.accelerator.current_accelerator().type == "cuda"
assert torch.cuda.current_device() == torch.accelerator.current_device_index() == rank
dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device)

here = torch.arange(4.0)
there = here.cuda()
assert (here.device.type, there.device, there.is_cuda) == ("cpu", device, True)
there.add_(1)
assert here.tolist() == [0, 1, 2, 3]
assert (there * 2)[1:].device == torch.zeros_like(there).device == device
assert there.cpu().device.type == torch.ones(2).device.type == "cpu"
assert torch.tensor([1], device="cuda").device == torch.zeros(2, device=rank).device == device
assert copy.deepcopy(there).device == here.to(there).device == there.half().device == device
assert torch.device(rank) == device
assert not torch.cuda.is_current_stream_capturing()
with device:
    assert torch.empty(3).device == device
file = io.BytesIO()
torch.save(there, file)
for asked, found in (("cpu", torch.device("cpu")), (None, device)):
    file.seek(0)
    assert torch.load(file, map_location=asked).device == found
state = torch.cuda.get_rng_state()
first = torch.rand(4, device="cuda")
torch.rand(4)
torch.cuda.set_rng_state(state)
assert torch.equal(first, torch.rand(4, device="cuda"))
with torch.cuda.stream(torch.cuda.Stream()) as stream:
    torch.cuda.Event(enable_timing=True).record()
torch.cuda.synchronize()
with torch.cuda.nvtx.range("step"):
    torch.cuda.memory._record_memory_history(max_entries=10)
assert torch.cuda.memory.mem_get_info()[0] > 0
assert torch.cuda.utilization() == 0 == torch.cuda.cudart().cudaProfilerStart()
assert torch.cuda.memory_allocated() == torch.cuda.memory_stats()["active.all.peak"] == 0

torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 4).to(rank), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(torch.randn(2, 4, pin_memory=True))
    assert (output.dtype, output.device) == (torch.bfloat16, device)
    output.float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
