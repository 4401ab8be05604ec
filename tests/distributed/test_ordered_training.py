"""The trainer under the rules of NCCL: losses, checkpoints and a resumed run as on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ordered_ranks
import pytest
import training_cases
from distributed_ranks import on_ranks
from lowered_steps import shared_folder
from nccl_rules import EAGER
from profiles import IS_LONG
from test_distributed_pipeline import MODEL, alone_for_three_steps

from primepar.plan import preset_plan

RANKS = 4
NAMES = {"pipeline": "1f1b:2x2,megatron"} | ({"tensor": "primepar"} if IS_LONG else {})


@pytest.fixture(scope="module")
def four() -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the runs, and what each rank answered."""
    plans = {
        name: preset_plan(text, MODEL, RANKS, training_cases.BATCH) for name, text in NAMES.items()
    }

    def fill(folder: Path) -> list[dict[str, Any]]:
        return on_ranks(RANKS, ordered_ranks.trained, folder, plans, backend=EAGER)

    return shared_folder("ordered", fill)


@pytest.fixture(scope="module")
def one() -> dict[int, float]:
    """The losses of one process."""
    return training_cases.losses(alone_for_three_steps() / "trained")


@pytest.mark.parametrize("name", NAMES)
def test_training_is_that_of_one_process(
    four: tuple[Path, list[dict[str, Any]]], one: dict[int, float], name: str
) -> None:
    folder, answers = four
    assert [answer[name] for answer in answers] == [0] * RANKS
    assert list(one) == [1, 2, 3]
    assert training_cases.losses(folder / name) == pytest.approx(one, rel=1e-9)


def test_a_run_goes_on_from_its_checkpoint(four: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, answers = four
    assert [answer["resumed"] for answer in answers] == [0] * RANKS
    straight = training_cases.losses(folder / [*NAMES][-1])
    assert training_cases.losses(folder / "resumed") == {3: straight[3]}
