"""A file of tokens that is not what its side file states is refused before a run starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primepar.distributed.text.token_file import PAGE, page_digest, side_file
from primepar.distributed.training.data import Text, load_text, with_vocabulary
from primepar.distributed.training.settings import Settings
from primepar.distributed.training.settings_plan import plan_of
from primepar.errors import DataError
from primepar.plan import save_plan

VOCABULARY = 300
TOKENS = np.arange(1000) * 7 % VOCABULARY
AGAIN = "delete both to make them again with training.tokenizer"


def write(path: Path, tokens: Any = TOKENS, dtype: str = "uint16", **changes: Any) -> Path:
    """Write tokens and their side file, in which fields may be changed."""
    path.write_bytes(np.asarray(tokens, np.dtype(dtype).newbyteorder("<")).tobytes())
    header = {
        "format": "primepar-tokens", "version": 1, "dtype": dtype, "vocabulary": VOCABULARY,
        "end_of_text": 0, "train": {"tokens": 900, "bytes": 2700},
        "held_out": {"tokens": 100, "bytes": 400}, "unknown": 0,
        "tokenizer": {"file": "tokenizer.json", "digest": "d"},
        "sources": {"documents": 1, "digest": "e"}, "digest": "f", "pages": page_digest(path),
    }  # fmt: skip
    side_file(path).write_text(json.dumps({**header, **changes}))
    return path


def refusal(path: Path, batch: int = 2, context: int = 8) -> str:
    with pytest.raises(DataError) as caught:
        load_text(str(path), batch, context)
    return str(caught.value)


def test_parts_and_sizes_are_read_from_the_side_file(tmp_path: Path) -> None:
    text = load_text(str(write(tmp_path / "tokens.bin")), 2, 8)
    assert (len(text.train), len(text.held_out), text.vocabulary) == (900, 100, 300)
    assert text.bits_per_byte(np.log(2)) == pytest.approx(100 / 400)
    assert text.digest == "f"


def bad_copy(path: Path, change: Callable[[bytearray], object]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.bin")
    path.write_bytes(path.read_bytes()[:-300])
    assert refusal(path) == (
        f"{path}: expected 2000 bytes, 1000 tokens of 2 bytes as tokens.bin.json has it, got 1700: "
        f"copy the whole file, or {AGAIN}"
    )


@pytest.mark.parametrize("place", [0, 1, 999, 1000, 1998, 1999])
def test_other_tokens_of_the_same_size_are_refused(place: int, tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.bin")
    bad_copy(path, lambda content: content.__setitem__(place, content[place] ^ 1))
    assert refusal(path) == (
        f"{path}: expected the tokens that tokens.bin.json was written for, got others: copy both "
        f"files, or {AGAIN}"
    )


def test_a_large_file_is_compared_at_64_pages_only(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(1000 * PAGE))
    before = page_digest(path)
    bad_copy(path, lambda content: content.__setitem__(7 * PAGE, 1))
    assert page_digest(path) == before
    bad_copy(path, lambda content: content.__setitem__(-1, 1))
    assert page_digest(path) != before


def test_a_missing_file_and_a_missing_side_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    assert refusal(path) == (
        f"{path}: expected a file of tokens, found none: check --data, or give the text and "
        "--set training.tokenizer=tokenizer.json"
    )
    side_file(write(path)).unlink()
    assert refusal(path) == (
        f"{path}: expected the side file tokens.bin.json next to it, found none: copy it too, or "
        f"{AGAIN}"
    )


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"format": "other"}, "Invalid enum value 'other' - at `$.format`"),
        ({"vocabulary": 0}, "Expected `int` >= 1 - at `$.vocabulary`"),
        ({"train": {"tokens": -1, "bytes": 1}}, "Expected `int` >= 1 - at `$.train.tokens`"),
        ({"held_out": {"tokens": 1}}, "Object missing required field `bytes` - at `$.held_out`"),
    ],
)
def test_a_broken_side_file_is_refused(changes: dict[str, Any], got: str, tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.bin", **changes)
    assert refusal(path) == (
        f"{side_file(path)}: expected primepar-tokens version 1, got {got}: {AGAIN}"
    )


@pytest.mark.parametrize(
    ("batch", "context", "message"),
    [
        (90, 10, "901 training tokens or more for a batch of 90 and a context of 10, got 900"),
        (1, 100, "101 held-out tokens or more for a batch of 1 and a context of 100, got 100"),
    ],
)
def test_too_few_tokens_are_refused(batch: int, context: int, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.bin")
    assert refusal(path, batch, context) == (
        f"{path}: expected {message}: give a longer file, or a smaller training.batch or "
        "model.context"
    )
    assert load_text(str(path), 89, 10).windows(10) == 89


def test_a_token_beyond_the_vocabulary_ends_the_run(tmp_path: Path) -> None:
    tokens = TOKENS.copy()
    tokens[450] = 400
    text = load_text(str(write(tmp_path / "tokens.bin", tokens)), 2, 8)
    position = text.begin(0)
    with pytest.raises(DataError) as caught:
        for _ in range(56):
            text.batch(position, 2, 8)
            position = position.after(2, text.windows(8))
    assert str(caught.value) == (
        f"{tmp_path}/tokens.bin: expected tokens below 300, the tokenizer's vocabulary, got 400: "
        "make the file again with training.tokenizer"
    )


def test_the_model_takes_the_vocabulary_of_the_data(tmp_path: Path) -> None:
    text = load_text(str(write(tmp_path / "tokens.bin")), 2, 8)

    def entries(text: Text, **changes: Any) -> tuple[int, int]:
        given = Settings(**changes)
        settings, plan = with_vocabulary(given, plan_of(given, 1), text)
        return settings.model.vocabulary, plan.model.vocabulary

    assert entries(text) == (300, 300)
    assert entries(text, vocabulary=512) == (512, 512)
    assert entries(load_text(None, 2, 8)) == (256, 256)
    with pytest.raises(DataError) as caught:
        entries(text, vocabulary=256)
    assert str(caught.value) == (
        f"{text.name}: expected tokens of a tokenizer that fits the model's vocabulary of 256, got "
        "one with 300 entries: add --set model.vocabulary=300, or make the tokens with a smaller "
        "one"
    )
    save_plan(plan_of(Settings(), 1), tmp_path / "plan.json")
    with pytest.raises(DataError) as caught:
        entries(text, plan=str(tmp_path / "plan.json"))
    assert "take a plan for a larger model" in str(caught.value)
