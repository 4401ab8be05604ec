"""Everyday uses of a number that came over the network: none raises."""

import copy
import io
import json
import math
import pickle
import statistics

import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
w = torch.randn(100, requires_grad=True)
big = torch.randn(100)
dist.all_reduce(big)
t = torch.ones(4)
loss = (big.mean()).abs() + 1
u = loss.item()
USES = {
    "tensor": lambda: torch.tensor(u),
    "tensor list": lambda: torch.tensor([u, 1.0]),
    "full": lambda: torch.full((2,), u),
    "t+u": lambda: t + u,
    "u+t": lambda: u + t,
    "t*u": lambda: t * u,
    "u*t": lambda: u * t,
    "t/u": lambda: t / u,
    "u/t": lambda: u / t,
    "t-u": lambda: t - u,
    "t**u": lambda: t**u,
    "t*=u": lambda: t.mul_(u),
    "fill_": lambda: t.fill_(u),
    "t[0]=u": lambda: t.__setitem__(0, u),
    "add alpha": lambda: torch.add(t, t, alpha=u),
    "clamp": lambda: t.clamp(max=u),
    "where": lambda: torch.where(t > 0, u, 0.0),
    "json": lambda: json.dumps({"loss": u}),
    "pickle": lambda: pickle.loads(pickle.dumps(u)),
    "save": lambda: torch.save({"loss": u}, io.BytesIO()),
    "gather": lambda: dist.all_gather_object([None] * 2, u),
    "format": lambda: f"{u:.3f} {u} {u:>10.2e}",
    "percent": lambda: f"{u:.3f}",
    "str": lambda: str(u),
    "round": lambda: round(u, 2),
    "int": lambda: int(u),
    "float": lambda: float(u),
    "abs": lambda: abs(-u),
    "max": lambda: max(u, 1.0),
    "sum": lambda: sum([u, u]) / 2,
    "compare": lambda: u < 3,
    "chain": lambda: 0 < u < 10,
    "math": lambda: math.exp(-u),
    "isnan": lambda: math.isnan(u),
    "np": lambda: np.mean([u, u]),
    "np array": lambda: np.array([u, 1.0]).std(),
    "np float": lambda: np.float32(u) * 2,
    "np.log": lambda: np.log(u),
    "mean": lambda: statistics.mean([u, u]),
    "sorted": lambda: sorted([u, 1.0]),
    "copy": lambda: copy.deepcopy(u),
    "dict": lambda: {u: 1}[u],
    "in": lambda: u in [1.0, u],
    "lr": lambda: torch.optim.SGD([w], lr=u),
    "divmod": lambda: divmod(u, 1),
    "is_integer": lambda: u.is_integer(),
    "isinstance": lambda: isinstance(u, float) or 1 / 0,
    "bool": lambda: bool(u),
    "item float": lambda: float(loss),
    "tolist": lambda: big.tolist()[0] + 1,
    "numpy": lambda: big.numpy().mean(),
    "numpy part": lambda: loss.detach().cpu().numpy().item(),
    "print": lambda: print(loss, big),
    "rich": lambda: f"{loss:.3f}",
    "loss*u": lambda: (w.sum() * u).backward(),
    "perplexity": lambda: torch.exp(torch.tensor(u)).item(),
    "range": lambda: [0 for _ in range(int(u))],
    "index": lambda: [1, 2, 3][int(u) % 3],
    "np array of": lambda: torch.from_numpy(np.array([u])),
    "hash": lambda: hash(u) == hash(float(u)),
    "from np": lambda: torch.as_tensor(np.array([u], dtype=np.float32)),
    "np save": lambda: np.save(io.BytesIO(), np.array([u])),
    "full_like": lambda: torch.full_like(t, u),
    "scatter_": lambda: t.scatter_(0, torch.tensor([0]), u),
    "lerp": lambda: t.lerp(t, u),
    "new_tensor": lambda: t.new_tensor(u),
    "masked_fill": lambda: t.masked_fill(t > 0, u),
    "addcdiv": lambda: t.addcdiv(t, t, value=u),
}
for use in USES.values():
    use()
