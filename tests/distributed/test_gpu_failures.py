"""A rank that fails in the middle of a step: one line, its exit code, and nobody hangs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from backends import BACKENDS
from command_ranks import EndedRank, Fail, crashes, killed, out_of_memory, raises, train_ranks

SMALL = [
    "--set", "training.batch=4", "--steps", "1000", "--set", "model.layers=1",
    "--set", "model.hidden=32",
    "--set", "model.context=16", "--set", "training.dtype=float64", "--set", "checks.verify=false",
]  # fmt: skip


def ended(folder: Path, backend: str, fail: Fail, ranks: int = 2) -> list[EndedRank]:
    """How the ranks ended; the last one fails.

    On NCCL the others wait in a kernel of the GPU, until the launcher ends them.
    """
    words = [*SMALL, "--plan", "K2" if ranks == 2 else "P2x2"]
    return train_ranks(ranks, folder, backend, words, fail, by_itself=backend != "nccl")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_without_memory_reports_it_and_all_end(backend: str, tmp_path: Path) -> None:
    *others, failed = ended(tmp_path, backend, out_of_memory)
    assert failed.code == 2
    (line,) = failed.err.splitlines()
    assert line.startswith(
        "primepar: error: rank 1: expected room for a step in memory, got none left (tried to "
        "allocate "
    )
    assert line.endswith(
        "): take a smaller training.batch, more processes, or --set executor.device_memory=512MiB"
    )
    if backend != "nccl":
        assert [(rank.code, rank.err) for rank in others] == [(2, "")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_one_rank_is_reported_once(backend: str, tmp_path: Path) -> None:
    *others, failed = ended(tmp_path, backend, raises)
    assert (failed.code, failed.err) == (2, "primepar: error: expected a step, got none\n")
    if backend != "nccl":
        assert [(rank.code, rank.err) for rank in others] == [(2, "")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_that_nobody_foresaw_keeps_its_traceback(backend: str, tmp_path: Path) -> None:
    *others, failed = ended(tmp_path, backend, crashes)
    assert failed.code == 1
    assert failed.err.splitlines()[-1] == "RuntimeError: unforeseen"
    if backend != "nccl":
        assert [(rank.code, rank.err) for rank in others] == [(2, "")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_rank_is_missed_by_one_of_the_others(backend: str, tmp_path: Path) -> None:
    ranks = ended(tmp_path, backend, killed, ranks=4)
    assert ranks[-1].code == -9
    if backend != "nccl":
        assert [rank.code for rank in ranks] == [2, 2, 2, -9]
        ((number, line),) = [(number, rank.err) for number, rank in enumerate(ranks) if rank.err]
        assert re.sub(r"in step \d+ at .*\)", "in ...", line) == (
            f"primepar: error: rank {number}: expected every process to answer, got one that "
            "has ended, in ...: look for the message of that process\n"
        )
