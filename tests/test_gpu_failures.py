"""A rank that fails in the middle of a step: one line, its exit code, and nobody hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
from backends import BACKENDS
from command_ranks import EndedRank, Fail, crashes, killed, out_of_memory, raises, train_ranks

RANKS, FAILED = 4, 2
SMALL = [
    "--batch", "4", "--steps", "1000", "--set", "model.layers=1", "--set", "model.hidden=32",
    "--set", "model.context=16", "--set", "training.dtype=float64", "--set", "checks.verify=false",
]  # fmt: skip


def ended(folder: Path, backend: str, fail: Fail) -> list[EndedRank]:
    """On NCCL the others wait in a kernel of the GPU, until the launcher ends them."""
    return train_ranks(RANKS, folder, backend, SMALL, fail, by_itself=backend != "nccl")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_without_memory_reports_it_and_all_end(backend: str, tmp_path: Path) -> None:
    ranks = ended(tmp_path, backend, out_of_memory)
    assert ranks[FAILED].code == 2
    (line,) = ranks[FAILED].err.splitlines()
    assert line.startswith(
        "primepar: error: rank 2: expected room for a step in memory, got none left (tried to "
        "allocate "
    )
    assert line.endswith(
        "): take a smaller --batch, more processes, or --set executor.device_memory=512MiB"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_one_rank_is_reported_once(backend: str, tmp_path: Path) -> None:
    ranks = ended(tmp_path, backend, raises)
    assert (ranks[FAILED].code, ranks[FAILED].err) == (
        2, "primepar: error: expected a step, got none\n"
    )  # fmt: skip
    if backend != "nccl":
        assert [rank.code for rank in ranks] == [2] * RANKS
        assert [rank.err for number, rank in enumerate(ranks) if number != FAILED] == [""] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_that_nobody_foresaw_keeps_its_traceback(backend: str, tmp_path: Path) -> None:
    ranks = ended(tmp_path, backend, crashes)
    assert ranks[FAILED].code == 1
    assert ranks[FAILED].err.splitlines()[-1] == "RuntimeError: unforeseen"
    if backend != "nccl":
        assert [rank.code for rank in ranks] == [2, 2, 1, 2]
        assert [rank.err for number, rank in enumerate(ranks) if number != FAILED] == [""] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_rank_is_missed_by_one_of_the_others(backend: str, tmp_path: Path) -> None:
    ranks = ended(tmp_path, backend, killed)
    assert ranks[FAILED].code == -9
    if backend != "nccl":
        assert [rank.code for rank in ranks] == [2, 2, -9, 2]
        (spoken,) = [(number, rank.err) for number, rank in enumerate(ranks) if rank.err]
        assert spoken[1] == (
            f"primepar: error: rank {spoken[0]}: expected every process to answer, got one that "
            "has ended: look for the message of that process\n"
        )
