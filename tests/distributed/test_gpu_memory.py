"""Steps on several ranks: memory that does not grow, evict and fetch, and half precision."""

from __future__ import annotations

from functools import cache

import gpu_cases
import pytest
from backends import LONG
from distributed_ranks import on_ranks

LIMIT = 96 << 10
"""Bytes of device memory: less than the states of a rank."""
HALF = 2.0**-8
"""Relative distance of two neighbours in bfloat16."""
Runs = tuple[gpu_cases.Trained, gpu_cases.Trained]


def steps_on(backend: str) -> int:
    return 60 if backend == "nccl" else 12


@cache
def long_runs(backend: str) -> list[Runs]:
    """Of each of two ranks: a free run and a limited one."""
    asked = ("K2", steps_on(backend), LIMIT)
    return [(free, limited) for free, limited in on_ranks(
        2, gpu_cases.long_runs, *asked, backend=backend)]  # fmt: skip


@cache
def short_runs(backend: str) -> list[Runs]:
    """Of each of four ranks: float64 and bfloat16."""
    answers = on_ranks(4, gpu_cases.short_runs, "P2x2", backend=backend)
    return [(double, half) for double, half in answers]


@pytest.mark.parametrize("backend", LONG)
def test_no_step_leaves_memory_behind(backend: str) -> None:
    """A thread of the backend may hold the blocks of a message longer: the least counts."""
    for runs in long_runs(backend):
        for ended in runs:
            assert len(ended.losses) == steps_on(backend)
            half = len(ended.used) // 2
            assert min(ended.used[half:]) == min(ended.used[:half]) > 0


@pytest.mark.parametrize("backend", LONG)
def test_states_in_host_memory_change_no_number(backend: str) -> None:
    for free, limited in long_runs(backend):
        assert limited.losses == free.losses
        assert limited.norms == free.norms
        assert limited.pinned
        assert set(limited.pinned) == {backend == "nccl"}
        assert not free.pinned


@pytest.mark.parametrize("backend", LONG)
def test_a_model_learns_the_batch_that_it_sees(backend: str) -> None:
    losses = long_runs(backend)[0][0].losses
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("backend", LONG)
def test_half_precision_is_near_double_precision(backend: str) -> None:
    for double, half in short_runs(backend):
        assert half.losses == pytest.approx(double.losses, rel=4 * HALF)
        assert half.losses != double.losses
        assert half.norms == pytest.approx(double.norms, rel=16 * HALF)


@pytest.mark.parametrize("backend", LONG)
def test_double_precision_is_that_of_the_cpu(backend: str) -> None:
    expected = short_runs("gloo")[0][0]
    for double, _ in short_runs(backend):
        assert double.losses == pytest.approx(expected.losses, rel=1e-9)
        assert double.norms == pytest.approx(expected.norms, rel=1e-9)
