"""A log on a full disk: one line, and no part of a row."""

from __future__ import annotations

import os
from errno import ENOSPC
from pathlib import Path

import pytest

from primepar.distributed.training.log import EvaluateRow, Log, read_log
from primepar.errors import ConfigError

WRITE = os.write


def nothing(file: int, line: bytes) -> int:
    raise OSError(ENOSPC, os.strerror(ENOSPC))


def five_bytes(file: int, line: bytes) -> int:
    return WRITE(file, line[:5])


@pytest.mark.parametrize("write", [nothing, five_bytes])
def test_a_full_disk_leaves_whole_rows(
    write: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, row = tmp_path / "log.jsonl", EvaluateRow(1, 2.5)
    with Log(str(path)) as log:
        log.write(row)
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(ConfigError) as caught:
            log.write(EvaluateRow(2, 2.25))
        monkeypatch.setattr(os, "write", WRITE)
    size = path.stat().st_size
    assert str(caught.value) == (
        f"output.log {path}: expected room for a row of {size + 1} bytes, got no space left on "
        "device: make room, and resume from the last checkpoint"
    )
    assert read_log(path) == [row]
