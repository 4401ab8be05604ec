"""A manifest with a right checksum and wrong content is refused with the place of it."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import attack_checkpoints as attack
import pytest

from primepar.distributed.checkpoints.loading import SavedRun, load_saved, read_whole
from primepar.distributed.checkpoints.manifest import MANIFEST
from primepar.distributed.training.loss_scale import LossScale
from primepar.errors import CheckpointError

NAME = r"Expected `str` matching regex '^rank-[0-9]{5,9}(-[0-9]{1,9})?\\.safetensors\\Z'"
OUTSIDE = "../../../x.safetensors"


def crafted(path: Path, place: tuple[Any, ...], value: object) -> None:
    """Set one value of the manifest, and its checksum anew."""
    manifest = json.loads((path / MANIFEST).read_bytes())["checkpoint"]
    inside = manifest
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    seal(path, json.dumps(manifest))


def seal(path: Path, manifest: str) -> None:
    digest = sha256(manifest.encode()).hexdigest()
    (path / MANIFEST).write_text(f'{{"sha256":"{digest}","checkpoint":{manifest}}}')


@pytest.mark.parametrize(
    ("place", "value", "got"),
    [
        (("step",), -2, "Expected `int` >= 0 - at `$.step`"),
        (("step",), 10**400, "Expected `int` <= 999999999 - at `$.step`"),
        (("step",), 1.5, "Expected `int`, got `float` - at `$.step`"),
        (("identity", "ranks"), 0, "Expected `int` >= 1 - at `$.identity.ranks`"),
        (("identity", "code"), "a\u202e", None),
        (("files", OUTSIDE), {"size": 1, "sha256": "0" * 64}, f"{NAME} - at `key` in `$.files`"),
        (("files", "/etc/passwd"), {"size": 1, "sha256": "0" * 64}, f"{NAME} - at `key` in "
         "`$.files`"),
        (("version",), 2, "Invalid enum value 2 - at `$.version`"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_crafted_manifest_is_refused(
    tmp_path: Path, place: tuple[Any, ...], value: object, got: str | None
) -> None:
    path = attack.written(tmp_path)
    crafted(path, place, value)
    with pytest.raises(CheckpointError) as caught:
        read_whole(path)
    message = str(caught.value)
    assert "\n" not in message
    if got is not None:
        assert message == (
            f"{path / MANIFEST}: expected the manifest of a checkpoint, got {got}: no earlier "
            "checkpoint is whole"
        )


def test_a_key_twice_in_a_manifest_is_refused(tmp_path: Path) -> None:
    path = attack.written(tmp_path)
    manifest = json.dumps(json.loads((path / MANIFEST).read_bytes())["checkpoint"])
    seal(path, manifest.replace('"step": 1', '"step": 9, "step": 1'))
    with pytest.raises(CheckpointError) as caught:
        read_whole(path)
    assert str(caught.value) == (
        f"{path / MANIFEST}: $.checkpoint.step: expected the key once, got it twice: leave one "
        "out: no earlier checkpoint is whole"
    )


def test_a_file_of_tensors_that_the_manifest_has_not_is_refused(tmp_path: Path) -> None:
    path = attack.written(tmp_path)
    (path / "rank-00009.safetensors").write_bytes((path / "rank-00001.safetensors").read_bytes())
    with pytest.raises(CheckpointError) as caught:
        read_whole(path)
    assert str(caught.value) == (
        f"{path / 'rank-00009.safetensors'}: expected a file that {MANIFEST} has, got another one: "
        "move it elsewhere: no earlier checkpoint is whole"
    )


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"data": {"seed": 0, "text": "", "sample": -1}}, "run_state.data: expected what a run "
         "saves, got Expected `int` >= 0 - at `$.sample`"),
        ({"loss_scale": {"scale": 0.0}}, "run_state.loss_scale: expected what a run saves, got "
         "Expected `float` > 0.0 - at `$.scale`"),
        ({"loss_scale": {"scale": 2.0, "good": -1}}, "run_state.loss_scale: expected what a run "
         "saves, got Expected `int` >= 0 - at `$.good`"),
        ({"data": 3}, "run_state.data: expected what a run saves, got Expected `object | null`, "
         "got `int`"),
    ],
)  # fmt: skip
def test_a_crafted_state_of_a_run_is_refused(
    tmp_path: Path, state: dict[str, Any], message: str
) -> None:
    path = attack.written(tmp_path)
    crafted(path, ("run_state",), state)
    saved = SavedRun(path, read_whole(path), [])
    with pytest.raises(CheckpointError) as caught:
        load_saved(saved, None)  # type: ignore[arg-type]
    assert str(caught.value) == f"{path}: {message}"
    assert LossScale(2.0, 1, 0).scale == 2.0
