"""The same on CUDA devices joined by NCCL; four ranks may share one GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import distributed_cases as cases
import linear_cases
import numpy as np
import pytest
import torch
from distributed_program import RANKS, expected_blocks, run_program
from distributed_ranks import on_ranks
from test_distributed_gpt import CLOSE, difference, one_process

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
    linear = [(work, name) for name in chosen for work in ("linear", "arenas", "evaluation")]
    linear += [("twice", name) for name in chosen if name in HOMES]
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
    arrays = results(size_of(sequence))[0]["linear", sequence]["arrays"]
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in linear_cases.dense_tensors().items()
    }


@pytest.mark.parametrize("sequence", [*SEQUENCES, *HOMES])
def test_no_memory_is_made_after_the_first_step(sequence: str) -> None:
    for result in results(size_of(sequence)):
        counts = result["arenas", sequence]
        assert counts == [counts[0]] * len(counts)


@pytest.mark.parametrize("sequence", HOMES)
def test_a_weight_with_a_home_stays(sequence: str) -> None:
    for result in results(size_of(sequence)):
        assert result["twice", sequence]["equal"]
        assert result["twice", sequence]["stayed"]


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_an_evaluation_leaves_the_weight_at_home(sequence: str) -> None:
    for result in results(size_of(sequence)):
        assert result["evaluation", sequence] == {"stayed": True, "equal": True}


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


def test_every_instruction_does_what_the_program_defines() -> None:
    answers = on_ranks(RANKS, run_program, True, backend="nccl")
    for result, expected in zip(answers, expected_blocks(), strict=True):
        assert result["blocks"].keys() == expected.keys()
        for name, block in expected.items():
            np.testing.assert_array_equal(result["blocks"][name], block, name)
