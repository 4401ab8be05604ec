"""The training text: deterministic, held out, and refused where there is too little of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from primepar.distributed.training.data import Text, library_files, load_text, windows
from primepar.errors import DataError

REMEDY = "give a longer file, or a smaller training.batch or model.context"
COUNT = bytes(range(200))


def refusal(path: Path | str, batch: int = 2, context: int = 8) -> str:
    with pytest.raises(DataError) as caught:
        load_text(str(path), batch, context)
    return str(caught.value)


def test_a_target_is_the_byte_after_its_token() -> None:
    tokens_BT, targets_BT = windows(np.frombuffer(COUNT, np.uint8), np.array([0, 7]), 3)
    assert tokens_BT.tolist() == [[0, 1, 2], [7, 8, 9]]
    assert targets_BT.tolist() == [[1, 2, 3], [8, 9, 10]]


def test_the_last_tenth_is_held_out() -> None:
    text = Text.of("count", COUNT, batch=2, context=8)
    assert text.train.tolist() == list(range(180))
    assert text.held_out.tolist() == list(range(180, 200))


def test_a_batch_is_a_function_of_the_position() -> None:
    text = Text.of("count", COUNT, batch=2, context=8)
    position = text.begin(seed=5).after(6, text.windows(8))
    first, again = (text.batch(position, batch=2, context=8) for _ in range(2))
    others = [text.batch(position.after(2, 22), 2, 8), text.batch(text.begin(6), 2, 8)]
    assert np.array_equal(first, again)
    assert not any(np.array_equal(first, other) for other in others)


def test_an_epoch_reads_every_window_once_and_none_that_is_held_out() -> None:
    text = Text.of("count", COUNT, batch=2, context=8)
    position, starts = text.begin(seed=0), []
    for _ in range(11):
        tokens_BT, targets_BT = text.batch(position, 2, 8)
        assert np.array_equal(targets_BT, tokens_BT + 1)
        starts += tokens_BT[:, 0].tolist()
        position = position.after(2, text.windows(8))
    assert sorted(starts) == list(range(0, 176, 8))
    assert (position.epoch, position.sample) == (1, 0)


def test_held_out_windows_are_spread_over_all_that_is_held_out() -> None:
    text = Text.of("count", COUNT, batch=2, context=8)
    batches = list(text.held_out_batches(3, batch=2, context=8))
    starts = [int(start) for tokens_BT, _ in batches for start in tokens_BT[:, 0]]
    assert starts == [180, 182, 184, 186, 188, 191]
    assert batches[-1][1][-1, -1] == 199


@pytest.mark.parametrize(("batch", "context"), [(2, 8), (1, 19), (3, 4), (1, 6), (4, 7)])
def test_all_that_is_held_out_is_evaluated(batch: int, context: int) -> None:
    text = Text.of("count", COUNT, batch, context)
    batches = list(text.held_out_batches(None, batch, context))
    read = {int(byte) for _, targets_BT in batches for byte in targets_BT.ravel()}
    assert read == set(range(181, 200))
    assert len(batches) == -(-19 // (batch * context))


def test_bits_per_byte_of_bytes_are_the_loss_in_bits() -> None:
    text = Text.of("count", COUNT, batch=2, context=8)
    assert text.bits_per_byte(np.log(256)) == pytest.approx(8)


def test_the_default_text_is_the_standard_library() -> None:
    text = load_text(None, batch=8, context=128)
    assert text.name == "the standard library"
    assert len(text.train) + len(text.held_out) == sum(
        path.stat().st_size for path in library_files()
    )
    assert len(text.train) > 1_000_000


def test_a_folder_and_a_pattern_are_all_of_their_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name * 40)
    assert load_text(f"{tmp_path}/*.txt", 2, 8).train.tobytes().startswith(b"a.txt" * 40 + b"b.txt")
    assert len(load_text(str(tmp_path), 2, 8).train) == 504
    assert refusal(f"{tmp_path}/*.rst") == (
        f"{tmp_path}/*.rst: expected files of text to train on, found none: check --data"
    )


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.touch()
    assert refusal(path) == f"{path}: expected text to train on, got an empty file: {REMEDY}"


@pytest.mark.parametrize(
    ("batch", "context", "needed"), [(1, 8, 90), (20, 8, 178), (2, 50, 510), (50, 1, 56)]
)
def test_a_short_file_is_refused_with_the_length_that_it_needs(
    batch: int, context: int, needed: int, tmp_path: Path
) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"x" * (needed - 1))
    assert refusal(path, batch, context) == (
        f"{path}: expected {needed} bytes or more for a batch of {batch} and a context of "
        f"{context}, got {needed - 1}: {REMEDY}"
    )
    path.write_bytes(b"x" * needed)
    assert load_text(str(path), batch, context).name == str(path)
