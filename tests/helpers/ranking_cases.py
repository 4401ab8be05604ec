"""What ranks do in the test of measured plans: alternating steps of small plans."""

from __future__ import annotations

import torch.distributed as dist

from benchmarks.predicted_and_measured import measure
from primepar.models import ModelConfig
from primepar.plan import preset_plan

MODEL = ModelConfig.of("gpt", layers=1, hidden=8, heads=2, context=8, vocabulary=256)


def measured() -> list[tuple[list[float], list[float]]]:
    """Wall and CPU seconds of two steps of two plans."""
    size = dist.get_world_size()
    plans = [preset_plan(name, MODEL, size, 2) for name in ("megatron", "data")]
    return [(plan.wall, plan.cpu) for plan in measure(plans, 2)]
