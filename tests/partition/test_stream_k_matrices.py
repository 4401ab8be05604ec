"""Stream-K on real matrices, by workers that wait for flags in one memory."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from attack_stream_k import compare, every_case
from profiles import draws
from stream_k_cases import LastOwns

from primepar.errors import DeadlockError, ShapeError
from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import TilePart, WorkSplit
from primepar.reference.stream_k import stream_k_product

SIZES = StreamK(workers=5, M=3, N=4, K=2, tile_m=1, tile_n=1, tile_k=1)


def operands(method: StreamK) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(-4, 5, (method.M, method.N)), rng.integers(-4, 5, (method.N, method.K))


def test_cases_of_the_integer_test_set_are_exact() -> None:
    """A sample; `python tests/helpers/attack_stream_k.py` compares all of them."""
    sample = Random(0).sample(list(every_case()), draws(240))
    results = [compare(case) for case in sample]
    assert [result.text for result in results if not result.equal] == []
    assert sum(result.partial > 0 for result in results) > len(results) / 3


def test_any_order_of_the_workers_gives_the_same() -> None:
    I_MN, W_NK = operands(SIZES)
    for seed in range(20):
        order = Random(seed).sample(range(SIZES.workers), SIZES.workers)
        assert (stream_k_product(SIZES, I_MN, W_NK, order) == I_MN @ W_NK).all()


def test_with_the_last_worker_as_owner_waits_are_a_chain_that_ends() -> None:
    class Chain(StreamK, frozen=True):
        rule = LastOwns()

    method = Chain(**SIZES.sizes)
    I_MN, W_NK = operands(method)
    assert (stream_k_product(method, I_MN, W_NK) == I_MN @ W_NK).all()


def test_a_flag_that_is_never_raised_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = SIZES.split.parts
    silent = tuple(part for part in parts[2] if part.owner == 2)
    changed: tuple[tuple[TilePart, ...], ...] = (*parts[:2], silent, *parts[3:])
    monkeypatch.setattr(WorkSplit, "parts", changed)
    with pytest.raises(DeadlockError) as caught:
        stream_k_product(StreamK(**SIZES.sizes), *operands(SIZES))
    assert str(caught.value) == "expected a flag, got none: workers [1] wait"


def test_operands_of_another_size_are_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        stream_k_product(SIZES, np.zeros((3, 4)), np.zeros((4, 3)))
    assert str(caught.value) == (
        "expected I and W of (3, 4) and (4, 2), got (3, 4) and (4, 3): give the method their sizes"
    )
