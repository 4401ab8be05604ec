"""Steps on four ranks: memory that does not grow, evict and fetch, and half precision."""

from __future__ import annotations

from functools import cache

import gpu_cases
import pytest
from backends import BACKENDS
from distributed_ranks import on_ranks

RANKS, SEQUENCE = 4, "P2x2"
STEPS = {"gloo": 12, "nccl": 200}
LIMIT = 48 << 10
"""Bytes of device memory: less than the states of a rank."""
HALF = 2.0**-8
"""Relative distance of two neighbours in bfloat16."""


@cache
def results(backend: str) -> list[dict[str, gpu_cases.Trained]]:
    return on_ranks(RANKS, gpu_cases.all_runs, SEQUENCE, STEPS[backend], LIMIT, backend=backend)


@pytest.mark.parametrize("run", ["flat", "limited"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_step_leaves_memory_behind(backend: str, run: str) -> None:
    for ended in results(backend):
        assert len(ended[run].losses) == STEPS[backend]
        assert set(ended[run].used) == {ended[run].used[0]}
        assert ended[run].used[0] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_in_host_memory_change_no_number(backend: str) -> None:
    for ended in results(backend):
        assert ended["limited"].losses == ended["flat"].losses
        assert ended["limited"].norms == ended["flat"].norms
        assert ended["limited"].pinned
        assert set(ended["limited"].pinned) == {backend == "nccl"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_learns_the_batch_that_it_sees(backend: str) -> None:
    losses = results(backend)[0]["flat"].losses
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_is_near_double_precision(backend: str) -> None:
    for ended in results(backend):
        assert ended["bfloat16"].losses == pytest.approx(ended["float64"].losses, rel=4 * HALF)
        assert ended["bfloat16"].losses != ended["float64"].losses
        assert ended["bfloat16"].norms == pytest.approx(ended["float64"].norms, rel=16 * HALF)


@pytest.mark.parametrize("backend", BACKENDS)
def test_double_precision_is_that_of_the_cpu(backend: str) -> None:
    expected = results("gloo")[0]["float64"]
    for ended in results(backend):
        assert ended["float64"].losses == pytest.approx(expected.losses, rel=1e-9)
        assert ended["float64"].norms == pytest.approx(expected.norms, rel=1e-9)
