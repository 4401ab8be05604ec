"""Pipelines of two stages on four ranks: NCCL and gloo against one process, in float64."""

from __future__ import annotations

from functools import cache

import distributed_step_cases as cases
import numpy as np
import pytest
from backends import LONG
from distributed_model_cases import mesh_of
from distributed_ranks import on_ranks
from distributed_steps import BATCH
from test_distributed_pipeline import CASES, RANKS, plan_of

from primepar.plan import preset_plan

STEPS, CLIP = 2, 0.5


@cache
def results(backend: str) -> list[list[cases.Run]]:
    asked = [(plan_of(*case), STEPS, CLIP) for case in CASES]
    return on_ranks(RANKS, cases.runs, RANKS, asked, backend=backend)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case[0] for case in CASES])
@pytest.mark.parametrize("backend", LONG)
def test_a_pipeline_trains_as_one_process(backend: str, number: int) -> None:
    model = plan_of(*CASES[number]).model
    alone = cases.trained(preset_plan("data", model, 1, BATCH), STEPS, CLIP, mesh_of(1))
    for ended in results(backend):
        assert ended[number].losses == pytest.approx(alone.losses, rel=1e-9)
        assert ended[number].norms == pytest.approx(alone.norms, rel=1e-9)
    for name, parts in alone.parts.items():
        ((_, expected),) = parts
        whole = cases.whole([ended[number].parts[name] for ended in results(backend)], expected)
        assert np.abs(whole - expected).max() < 1e-9 * np.abs(expected).max()
