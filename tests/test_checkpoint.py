"""Checkpoints that cannot be written, read or meant are refused; none is left half-written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import training_cases as cases
from safetensors.numpy import load_file, save_file

from primepar.distributed.training import checkpoint
from primepar.models import initial_parameter

STEP_2 = "step-00000002.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    assert cases.train(folder / "run", steps=2, checkpoint=str(folder)) == 0
    return folder


def refusal(folder: Path, where: Path, **changes: Any) -> str:
    """What a run says that resumes from `folder` for a third step; it leaves no log."""
    given = {"steps": 3, "checkpoint": str(folder), "resume": True, **changes}
    answer = str(cases.train(where / "run", **given))
    assert not (where / "run" / "log.jsonl").exists()
    assert answer.startswith("CheckpointError: ")
    return answer.removeprefix("CheckpointError: ")


def test_an_empty_folder_has_nothing_to_resume(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none", tmp_path) == (
        f"{tmp_path / 'none'}: expected a checkpoint to resume from, found none: leave --resume "
        "out to begin a new run"
    )


def test_a_new_run_leaves_an_old_checkpoint_alone(saved: Path, tmp_path: Path) -> None:
    before = (saved / STEP_2).read_bytes()
    assert refusal(saved, tmp_path, resume=False) == (
        f"{saved}: expected a folder without checkpoints for a new run, got {STEP_2}: add --resume "
        "to go on from it, or choose another folder"
    )
    assert (saved / STEP_2).read_bytes() == before


def test_a_checkpoint_of_another_model_is_refused(saved: Path, tmp_path: Path) -> None:
    assert refusal(saved, tmp_path, heads=2) == (
        f"{saved / STEP_2}: expected a checkpoint of the model --layers 2 --hidden 32 --heads 2 "
        "--context 16 --vocabulary 256, got one of --layers 2 --hidden 32 --heads 4 --context 16 "
        "--vocabulary 256: give the options of that run"
    )


def test_a_run_that_is_done_is_not_resumed(saved: Path, tmp_path: Path) -> None:
    answer = cases.train(tmp_path / "run", steps=2, checkpoint=str(saved), resume=True)
    assert answer == (
        f"ConfigError: --steps: expected more than the 2 steps of {saved / STEP_2}, got 2"
    )


def test_a_file_that_is_no_checkpoint_is_refused(saved: Path, tmp_path: Path) -> None:
    tensors = load_file(saved / STEP_2)
    save_file(tensors, tmp_path / STEP_2)
    assert refusal(tmp_path, tmp_path) == (
        f"{tmp_path / STEP_2}: expected primepar-checkpoint version 1, got no format version none: "
        "give a folder that primepar train wrote"
    )
    (tmp_path / STEP_2).write_bytes(b"")
    assert refusal(tmp_path, tmp_path) == (
        f"{tmp_path / STEP_2}: expected a whole checkpoint, got Error while deserializing header: "
        "header too small: delete it to resume from the one before"
    )


def test_the_newest_checkpoint_is_resumed_by_number_not_by_name(tmp_path: Path) -> None:
    for name in ("step-00000009", "step-100000000", "step-00000010"):
        (tmp_path / f"{name}.safetensors").touch()
    (tmp_path / "step-200000000.part").touch()
    assert checkpoint.latest(str(tmp_path)) == tmp_path / "step-100000000.safetensors"


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    folder = tmp_path / "saved"
    answer = cases.train(tmp_path / "run", steps=1, checkpoint=str(folder))
    assert answer == (
        f"CheckpointError: {folder / 'step-00000001.safetensors'}: expected to write a checkpoint, "
        "got no space left on device: choose another --checkpoint folder or make room"
    )
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_a_file_is_told_before_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    answer = cases.train(tmp_path / "run", steps=1, checkpoint=str(path))
    assert answer == (
        f"CheckpointError: --checkpoint {path}: expected a folder to write to, got file exists: "
        "choose another one"
    )
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_what_a_kill_left_is_swept_by_the_next_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "step-00000001.part").write_bytes(b"half")
    assert cases.train(tmp_path / "run", steps=2, checkpoint=str(folder)) == 0
    assert [path.name for path in folder.iterdir()] == [STEP_2]


def test_a_kill_while_it_writes_leaves_neither_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(checkpoint, "_name", killed)
    folder = tmp_path / "saved"
    assert cases.train(tmp_path / "run", steps=1, checkpoint=str(folder)) == "SystemExit: 143"
    assert list(folder.iterdir()) == []


def test_a_checkpoint_holds_the_parameters_after_its_step(saved: Path) -> None:
    tensors = load_file(saved / STEP_2)
    config = cases.SMALL.model
    for name in config.parameter_shapes:
        before, after = initial_parameter(config, name, cases.SMALL.seed), tensors[f"model.{name}"]
        assert 0 < abs(after - before).max() < 3 * cases.SMALL.lr
