"""What ranks do in the test of measured plans: alternating steps of small plans."""

from __future__ import annotations

import torch.distributed as dist
from torch import device
from torch.distributed import HashStore  # type: ignore[attr-defined]

from benchmarks.ranking.measure import alternating_steps
from primepar.distributed.training.launch import World
from primepar.models import ModelConfig
from primepar.plan import preset_plan

MODEL = ModelConfig.of("gpt", layers=1, hidden=8, heads=2, context=8, vocabulary=256)


def measured() -> list[list[tuple[list[float], list[float]]]]:
    """Wall and CPU seconds of two steps: two plans of a model, then one of them alone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    plans = [preset_plan(name, MODEL, size, 2) for name in ("megatron", "data")]
    world = World(rank, size, device("cpu"), HashStore())
    times = alternating_steps(world, [plans, plans[:1]], 2)
    return [[(plan.wall, plan.cpu) for plan in model] for model in times]
