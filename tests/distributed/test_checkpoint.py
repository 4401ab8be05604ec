"""Checkpoints that cannot be written, read or meant are refused; none is left half-written."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import training_cases as cases
from saved_tensors import arrays_of, files_of, tensors_of

from primepar.distributed.checkpoints import folder as folder_module
from primepar.distributed.checkpoints.folder import RunFolder, check_shared, saved_steps
from primepar.errors import CheckpointError
from primepar.models import initial_parameter

STEP_2, STEP_3 = "step-00000002", "step-00000003"
RANK_0 = "rank-00000.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    assert cases.train(folder / "run", steps=2, checkpoint=str(folder)) == 0
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """A checkpoint to be damaged, in a folder of its own."""
    shutil.copytree(saved / STEP_2, tmp_path / "copy" / STEP_2)
    return tmp_path / "copy"


def refusal(folder: Path, where: Path, **changes: Any) -> str:
    """The error of a run that resumes from `folder` for a third step; it writes no log."""
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
    before = files_of(saved / STEP_2)
    assert refusal(saved, tmp_path, resume=False) == (
        f"{saved}: expected a folder without checkpoints for a new run, got {STEP_2}: add --resume "
        "to go on from it, or choose another folder"
    )
    assert files_of(saved / STEP_2) == before


def test_a_checkpoint_of_another_model_is_refused(saved: Path, tmp_path: Path) -> None:
    assert refusal(saved, tmp_path, heads=2) == (
        f"{saved / STEP_2}: expected a checkpoint of a model with model.heads=2 model.kv_heads=2 "
        "model.head_dim=16, got one with model.heads=4 model.kv_heads=4 model.head_dim=8: give the "
        "settings of that run"
    )


def test_settings_that_differ_are_named_and_refused(saved: Path, tmp_path: Path) -> None:
    assert refusal(saved, tmp_path, seed=3, lr=0.5, batch=8, dtype="float32", warmup=0) == (
        f"{saved / STEP_2}: expected the settings of the run that wrote it, got training.batch=8 "
        "instead of 4, training.dtype=float32 instead of float64, training.seed=3 instead of 0, "
        "optimizer.lr=0.5 instead of 0.001, optimizer.warmup=0 instead of 5: give them as they "
        "were, or add --set checkpoint.override=true"
    )


def test_settings_that_differ_are_accepted_on_demand(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"steps": 3, "checkpoint": str(copy), "resume": True, "override": True, "lr": 0.5}
    assert cases.train(tmp_path / "run", **given) == 0
    note = f"{copy / STEP_2}: goes on with optimizer.lr=0.5 instead of 0.001"
    assert note in capsys.readouterr().out.splitlines()


def test_more_steps_of_a_rate_that_falls_until_the_last_one_are_another_run(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "saved")
    falling = {"schedule": "cosine", "warmup": 0, "checkpoint": folder}
    assert cases.train(tmp_path / "first", steps=1, **falling) == 0
    assert refusal(Path(folder), tmp_path, steps=2, **falling) == (
        f"{tmp_path / 'saved' / 'step-00000001'}: expected the settings of the run that wrote it, "
        "got optimizer.decay_steps=2 instead of 1: give them as they were, or add --set "
        "checkpoint.override=true"
    )
    changes = {"steps": 2, "decay_steps": 1, "resume": True}
    assert cases.train(tmp_path / "second", **falling, **changes) == 0


def test_what_does_not_define_the_losses_may_differ(copy: Path, tmp_path: Path) -> None:
    changes = {"steps": 3, "evaluate_every": 1, "keep": 0, "asynchronous": False, "plan": "K1",
               "accumulate": 2, "recompute": "full", "sharded": True}  # fmt: skip
    assert cases.train(tmp_path / "run", checkpoint=str(copy), resume=True, **changes) == 0


def test_a_run_that_is_done_ends_well_and_writes_what_was_asked(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler may queue a job again that has ended, or that ended after its last checkpoint."""
    given: dict[str, Any] = {"checkpoint": str(saved), "resume": True}
    weights = tmp_path / "weights.safetensors"
    assert cases.train(tmp_path / "run", steps=2, save_weights=str(weights), **given) == 0
    assert f"{saved / STEP_2}: all 2 steps are done\n" in capsys.readouterr().out
    assert weights.exists()
    assert cases.train(tmp_path / "less", steps=1, **given) == (
        f"ConfigError: --steps: expected at least the 2 steps of {saved / STEP_2}, got 1"
    )


def test_a_missing_file_is_named(copy: Path, tmp_path: Path) -> None:
    size = (copy / STEP_2 / RANK_0).stat().st_size
    (copy / STEP_2 / RANK_0).unlink()
    assert refusal(copy, tmp_path) == (
        f"{copy / STEP_2 / RANK_0}: expected {size} bytes of a checkpoint, got no such file or "
        "directory: no earlier checkpoint is whole"
    )


def test_a_folder_without_a_manifest_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / STEP_2 / "checkpoint.json").unlink()
    assert refusal(copy, tmp_path) == (
        f"{copy / STEP_2 / 'checkpoint.json'}: expected the manifest of a checkpoint, got no such "
        "file or directory: no earlier checkpoint is whole"
    )


def test_a_file_of_another_checkpoint_is_named_and_the_one_before_offered(
    copy: Path, tmp_path: Path
) -> None:
    changes = {"steps": 3, "checkpoint": str(copy), "resume": True}
    assert cases.train(tmp_path / "third", **changes) == 0
    shutil.copy(copy / STEP_2 / RANK_0, copy / STEP_3 / RANK_0)
    answer = refusal(copy, tmp_path, steps=4)
    start, _, end = answer.partition(", got ")
    assert start.startswith(f"{copy / STEP_3 / RANK_0}: expected the SHA-256 ")
    assert end[8:] == (
        ": the file has changed since it was written: delete "
        f"{copy / STEP_3} to resume from step 2, which is whole"
    )


def test_the_newest_checkpoint_is_resumed_by_number_not_by_name(tmp_path: Path) -> None:
    for name in ("step-00000009", "step-100000000", "step-00000010", "step-200000000.part"):
        (tmp_path / name).mkdir()
    assert list(saved_steps(tmp_path)) == [100000000, 10, 9]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    changes = {"checkpoint": str(folder), "checkpoint_every": 1, "keep": 2}
    assert cases.train(tmp_path / "run", steps=5, layers=1, **changes) == 0
    assert list(saved_steps(folder)) == [5, 4]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_full_disk_is_reported_and_leaves_the_checkpoint_before(
    asynchronous: bool, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", cases.full)
    before = files_of(copy / STEP_2)
    answer = cases.train(
        tmp_path / "run", steps=3, checkpoint=str(copy), resume=True, asynchronous=asynchronous
    )
    assert answer == (
        f"CheckpointError: {copy / STEP_3}: expected to write a checkpoint, got no space left on "
        "device: choose another --checkpoint folder or make room"
    )
    assert [path.name for path in copy.glob("step-*")] == [STEP_2]
    assert files_of(copy / STEP_2) == before


def test_a_file_that_may_not_grow_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    folder, limits = tmp_path / "saved", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        answer = cases.train(tmp_path / "run", steps=1, checkpoint=str(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert answer == (
        f"CheckpointError: {folder / 'step-00000001'}: expected to write a checkpoint, got file "
        "too large: choose another --checkpoint folder or make room"
    )
    assert list(folder.glob("step-*")) == []


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with RunFolder(folder):
        answer = cases.train(tmp_path / "run", steps=1, checkpoint=str(folder))
    assert answer == (
        f"CheckpointError: --checkpoint {folder}: expected a folder that no other run writes to, "
        f"got that of process {os.getpid()} on {os.uname().nodename}: wait for its end, or choose "
        "another one"
    )
    assert list(folder.glob("step-*")) == []


def test_a_folder_that_hosts_do_not_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SHOWN_SECONDS", 0.0)
    here, there = tmp_path / "saved", tmp_path / "other"
    with RunFolder(here) as opened:
        check_shared(here, opened.holder)
        for known in (True, False):
            with pytest.raises(CheckpointError) as refused:
                check_shared(there, opened.holder)
            assert str(refused.value) == (
                f"--checkpoint {there}: expected the folder of rank 0, process {os.getpid()} on "
                f"{os.uname().nodename}, got another one on {os.uname().nodename}: choose one on a "
                "file system that all hosts share"
            )
            assert there.exists() != known
            there.mkdir(exist_ok=True)
            (there / ".lock").write_text("process 1 on another")


def test_a_folder_that_is_a_file_is_reported_before_the_first_step(tmp_path: Path) -> None:
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
    (folder / "step-00000001.part").mkdir(parents=True)
    (folder / "step-00000001.part" / RANK_0).write_bytes(b"half")
    assert cases.train(tmp_path / "run", steps=2, checkpoint=str(folder)) == 0
    assert [path.name for path in folder.glob("step-*")] == [STEP_2]


def test_a_kill_before_a_checkpoint_has_its_name_leaves_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(RunFolder, "publish", killed)
    folder = tmp_path / "saved"
    assert cases.train(tmp_path / "run", steps=1, checkpoint=str(folder)) == "SystemExit: 143"
    assert list(folder.glob("step-*")) == []


def test_a_name_that_is_taken_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "saved"
    prepare = RunFolder.prepare

    def taken(opened: RunFolder, path: Path) -> Path:
        path.mkdir()
        (path / "mine").touch()
        return prepare(opened, path)

    monkeypatch.setattr(RunFolder, "prepare", taken)
    answer = cases.train(tmp_path / "run", steps=2, checkpoint=str(folder))
    assert answer == (
        f"CheckpointError: {folder / STEP_2}: expected to write a checkpoint, got directory not "
        "empty: choose another --checkpoint folder or make room"
    )
    assert [path.name for path in (folder / STEP_2).iterdir()] == ["mine"]


def test_a_checkpoint_holds_the_parameters_after_its_step(saved: Path) -> None:
    tensors = arrays_of(saved / STEP_2)
    config = cases.SMALL.model
    for name in config.parameter_shapes:
        before, after = initial_parameter(config, name, cases.SMALL.seed), tensors[f"model.{name}"]
        assert 0 < abs(after - before).max() < 3 * cases.SMALL.lr


@pytest.mark.parametrize(("before", "after"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_run_goes_on_in_another_precision_from_the_widest_parameters(
    before: str, after: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "saved")
    assert cases.train(tmp_path / "a", steps=2, dtype=before, checkpoint=folder) == 0
    changes = {"dtype": after, "checkpoint": folder, "resume": True, "override": True}
    assert cases.train(tmp_path / "b", steps=3, lr=1e-30, **changes) == 0
    saved, resumed = (arrays_of_wide(Path(folder, step)) for step in (STEP_2, STEP_3))
    for name, array in saved.items():
        assert np.array_equal(array, resumed[name]), name


def arrays_of_wide(path: Path) -> dict[str, Any]:
    """The parameters of a checkpoint in float32: the copies, where there are any."""
    tensors = tensors_of(path)
    kind = "master" if any(name.startswith("master.") for name in tensors) else "model"
    return {
        name.partition(".")[2]: tensor.numpy()
        for name, tensor in tensors.items()
        if name.startswith(f"{kind}.")
    }
