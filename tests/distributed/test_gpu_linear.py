"""The same on CUDA devices joined by NCCL; four ranks may share one GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import distributed_cases as cases
import linear_cases
import pytest
import torch
from distributed_ranks import on_ranks
from test_distributed_gpt import CLOSE, difference, one_process
from test_distributed_linear import is_dense

SEQUENCES = ("P1x1", "K2", "N2", "M2", "P2x2", "K,N2")
HOMES = ("Ks2", "Ns2", "Ks4", "Ns4", "S2x2", "Os2x2", "Is2x2", "Ws2x2", "F4")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def size_of(sequence: str) -> int:
    return linear_cases.sequence_of(sequence).ranks


@cache
def results(size: int) -> list[dict[tuple[str, str], Any]]:
    """Everything that one NCCL world of `size` processes is asked, rank by rank."""
    chosen = [sequence for sequence in (*SEQUENCES, *HOMES) if size_of(sequence) == size]
    linear = [("linear", name) for name in chosen]
    gpt = [("gpt", name) for name in chosen if name in SEQUENCES]
    by_rank: list[dict[tuple[str, str], Any]] = [{} for _ in range(size)]
    for module, asked in ((linear_cases, linear), (cases, gpt)):
        calls = [(work, (sequence,)) for work, sequence in asked]
        answers = on_ranks(size, module.several, calls, backend="nccl")
        for rank_results, answer in zip(by_rank, answers, strict=True):
            rank_results.update(zip(asked, answer, strict=True))
    return by_rank


@pytest.mark.parametrize("sequence", [*SEQUENCES, *HOMES])
def test_output_and_gradients_equal_one_device(sequence: str) -> None:
    is_dense([result["linear", sequence] for result in results(size_of(sequence))])


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_training_goes_as_on_one_cpu(sequence: str) -> None:
    got = results(size_of(sequence))[0]["gpt", sequence]
    assert got["losses"] == pytest.approx(one_process()["losses"], rel=CLOSE)
    assert difference(got["gradients"], one_process()["gradients"]) < CLOSE
    assert difference(got["parameters"], one_process()["parameters"]) < CLOSE


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_every_rank_reports_the_same_loss(sequence: str) -> None:
    losses = [result["gpt", sequence]["losses"] for result in results(size_of(sequence))]
    assert losses == [losses[0]] * len(losses)
