"""The trainer under the rules of NCCL: losses, checkpoints and a resumed run as on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ordered_ranks
import pytest
import training_cases
from distributed_ranks import on_ranks
from nccl_rules import EAGER
from profiles import IS_LONG
from test_distributed_pipeline import MODEL, trained_alone

from primepar.plan import preset_plan

RANKS = 4
NAMES = {"pipeline": "1f1b:2x2,megatron"} | ({"tensor": "primepar"} if IS_LONG else {})


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the runs, and what each rank answered."""
    folder = tmp_path_factory.mktemp("ordered")
    plans = {
        name: preset_plan(text, MODEL, RANKS, training_cases.BATCH) for name, text in NAMES.items()
    }
    return folder, on_ranks(RANKS, ordered_ranks.trained, folder, plans, backend=EAGER)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of one process."""
    folder = trained_alone(tmp_path_factory.mktemp("one"), MODEL, training_cases.BATCH, 3)
    return training_cases.losses(folder / "trained")


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
