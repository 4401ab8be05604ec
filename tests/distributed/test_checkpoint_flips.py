"""A bit flip or a cut anywhere in a checkpoint is refused; the checkpoint as written is not."""

from __future__ import annotations

from pathlib import Path

import attack_checkpoints as attack
from profiles import IS_LONG

from primepar.distributed.checkpoints.loading import read_whole

COUNT = 4000 if IS_LONG else 40


def test_every_change_is_refused_and_its_file_named(tmp_path: Path) -> None:
    path = attack.written(tmp_path)
    parts = set()
    for change in attack.changes(path, COUNT, seed=16):
        message = attack.refusal(path, change) or ""
        assert message.startswith(f"{path / change.file}: expected "), change
        assert message.endswith(": no earlier checkpoint is whole"), change
        assert "\n" not in message
        parts.add(change.part)
    assert parts == {*attack.PARTS, "cut"}
    assert read_whole(path).step == 1


def test_two_boxes_of_a_tensor_on_one_rank_are_in_two_files(tmp_path: Path) -> None:
    path = attack.written(tmp_path)
    assert sorted(file.name for file in path.iterdir()) == [
        "checkpoint.json", "rank-00000-2.safetensors", "rank-00000.safetensors",
        "rank-00001.safetensors",
    ]  # fmt: skip
