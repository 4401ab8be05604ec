"""What a run does before its first step: one program on all ranks, proved; and `checks.conform`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import training_cases as cases
from distributed_ranks import on_ranks
from lowered_steps import shared_folder

from primepar.errors import RefutedError
from primepar.schedule import Program

RANKS = 2


def refuse(program: Program, name: str) -> str:
    raise RefutedError(f"{name}: expected a program that is proved, got none")


def runs(folder: Path) -> dict[str, Any]:
    """Runs on two ranks: with other options on rank 1, not proved, and watched."""
    rank = dist.get_rank()
    few: dict[str, Any] = {"plan": "M2", "steps": 2}
    return {
        "alike": cases.train(folder / "alike", **few, clip=1.0 if rank else None),
        "refused": cases.train(folder / "refused", prove=refuse, **few),
        "conform": cases.train(folder / "conform", **few, conform=True),
        "plain": cases.train(folder / "plain", **few),
    }


@cache
def left() -> tuple[Path, list[dict[str, Any]]]:
    """A folder with the logs of the runs, and what each rank answered."""
    return shared_folder("programs", lambda folder: on_ranks(RANKS, runs, folder))


@pytest.fixture
def folder() -> Path:
    return left()[0]


@pytest.fixture
def answers() -> list[dict[str, Any]]:
    return left()[1]


def test_a_program_that_ranks_disagree_on_is_refused_on_one_rank(
    answers: list[dict[str, Any]],
) -> None:
    assert [answer["alike"] for answer in answers] == [
        "MeshError: rank 1: expected the plan, options and version of rank 0, got another: give "
        "every rank the same",
        "SystemExit: 0",
    ]


def test_a_program_that_is_not_proved_does_not_run(
    answers: list[dict[str, Any]], folder: Path
) -> None:
    assert answers[0]["refused"] == (
        "RefutedError: M2: expected a program that is proved, got none"
    )
    assert answers[1]["refused"] == "SystemExit: 0"
    assert not cases.losses(folder / "refused")


def test_a_run_that_is_watched_trains_as_any_other(
    answers: list[dict[str, Any]], folder: Path
) -> None:
    assert [answer["conform"] for answer in answers] == [0, 0]
    assert cases.losses(folder / "conform") == cases.losses(folder / "plain")
