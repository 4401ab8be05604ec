"""`training.tokenizer`: what a run makes of texts and reads back, and wrong input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import run
from tokenizers import Tokenizer, models, pre_tokenizers

from primepar.distributed.text import tokenize
from primepar.distributed.text.token_file import TokenHeader, open_tokens
from primepar.distributed.text.tokenize import text_files, tokenized
from primepar.distributed.training.data import load_text
from primepar.errors import DataError

WORDS = [f"line {n}: the cat sat on the mat {n * n}\n" for n in range(400)]
BODY = "".join(WORDS) + "Grüße, 你好, <|endoftext|> is text here\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, where the run is."""
    monkeypatch.chdir(tmp_path)
    Path("texts/inner").mkdir(parents=True)
    Path("texts/a.txt").write_text(BODY)
    Path("texts/inner/b.txt").write_text(BODY[::-1])
    Path("texts/c.md").write_text("A page.\n" * 50)
    Path("texts/empty.txt").touch()
    return tmp_path


def made(data: str, tokenizer: str = "300") -> tuple[TokenHeader, list[int], Path]:
    """Make a file of tokens; return what its side file has, the tokens, and its tokenizer."""
    path = tokenized(text_files(data), tokenizer)
    header, tokens = open_tokens(path)
    return header, tokens.tolist(), path.with_suffix(".tokenizer.json")


def test_the_tokens_decode_to_the_texts(folder: Path) -> None:
    header, tokens, tokenizer = made("texts/**/*.txt")
    coder = Tokenizer.from_file(str(tokenizer))
    ends = [n for n, token in enumerate(tokens) if token == coder.token_to_id("<|endoftext|>")]
    assert len(ends) == 2
    assert coder.decode(tokens[: ends[0]], skip_special_tokens=False) == BODY
    assert coder.decode(tokens[ends[0] + 1 : ends[1]], skip_special_tokens=False) == BODY[::-1]
    assert header.tokens == len(tokens)
    size = 2 * len(BODY.encode())
    assert header.held_out.bytes == pytest.approx(size / 10, abs=4)
    assert header.train.bytes + header.held_out.bytes == size


def test_the_parts_are_those_of_the_same_text_as_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last tenth is held out, as of bytes, up to a character; pieces change no byte."""
    letters = load_text("texts/a.txt", 2, 8)
    for size in (1 << 20, 64, 3):
        monkeypatch.setattr(tokenize, "PIECE", size)
        monkeypatch.setattr(tokenize, "CACHE", Path(f"cache{size}"))
        text = load_text("texts/a.txt", 2, 8, "300")
        assert isinstance(text.train, np.memmap)
        coder = Tokenizer.from_file(str(Path(text.name).with_suffix(".tokenizer.json")))
        assert coder.decode(text.train.tolist()).encode() == letters.train.tobytes()
        assert coder.decode(text.held_out.tolist()[:-1]).encode() == letters.held_out.tobytes()
        assert text.held_out_bytes == len(letters.held_out)
        assert text.bits_per_byte(2.5) == pytest.approx(
            2.5 / np.log(2) * len(text.held_out) / len(letters.held_out)
        )
        assert (text.unit, letters.unit) == ("tokens", "bytes")


def test_tokens_are_made_once_for_the_same_texts_and_tokenizer(folder: Path) -> None:
    header, _, tokenizer = made("texts")
    names = {path.name: path.stat().st_mtime_ns for path in Path(".primepar").iterdir()}
    assert made("texts")[0] == header
    assert {path.name: path.stat().st_mtime_ns for path in Path(".primepar").iterdir()} == names
    again, _, other = made("texts", str(tokenizer))  # the same tokens by the trained tokenizer
    assert (again, other == tokenizer) == (header, False)
    Path("texts/a.txt").write_text(BODY + "more")
    assert made("texts")[0] != header


def test_no_tokenizer_is_trained_on_what_is_held_out(folder: Path) -> None:
    Path("plain.txt").write_text("ab " * 900 + "zq" * 150)
    learned = Tokenizer.from_file(str(made("plain.txt")[2])).get_vocab()
    assert "ab" in learned
    assert "zq" not in learned


def test_a_larger_vocabulary_takes_four_bytes(folder: Path) -> None:
    letters = {letter: 70_000 + n for n, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    wide = Tokenizer(models.BPE(vocab={**letters, "</s>": 3}, merges=[]))
    wide.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    wide.save("wide.json")
    header, tokens, _ = made("texts/c.md", "wide.json")
    assert (header.dtype, header.vocabulary) == ("uint32", 70_256)
    assert tokens == [*(letters[chr(288) if byte == " " else "Ċ" if byte == "\n" else byte]
                        for byte in "A page.\n" * 50), 3]  # fmt: skip


def test_unknown_tokens_are_counted(folder: Path) -> None:
    words = Tokenizer(models.WordLevel({"A": 1, "<unk>": 2, "</s>": 3, ".": 4}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save("words.json")
    assert load_text("texts/c.md", 2, 8, "words.json").unknown == 50


WRONG = {
    ("no/*.rst", "300"): "no/*.rst: expected files of text to train on, found none: check --data",
    ("none", "300"): "none: expected to read texts and to write tokens into .primepar, got no such "
    "file or directory: check --data, or make room",
    ("texts/empty.txt", "300"): "texts/empty.txt: expected text to train on and to hold out, got 0 "
    "bytes: give more text",
    ("texts", "256"): "training.tokenizer: expected 257 entries or more, for all bytes and the end "
    "of a text, got 256",
    ("texts", "no.json"): "training.tokenizer no.json: expected a tokenizer.json, got no such file "
    "or directory: check the path, or write a number of entries to train one",
    ("texts", "latin.txt"): "training.tokenizer latin.txt: expected JSON in UTF-8, got the byte "
    "0xfc at 2: save it as UTF-8",
    ("texts", "texts/c.md"): "training.tokenizer texts/c.md: expected JSON, got broken text: JSON "
    "is malformed: invalid character (byte 0)",
    ("latin.txt", "300"): "latin.txt: expected UTF-8, got the byte 0xfc at 2: convert the file, or "
    "leave it out",
    ("texts", "stop.json"): "training.tokenizer: expected a token that ends a document, found "
    "none of <|endoftext|>, <|end_of_text|>, </s>, <eos>, [SEP] in the tokenizer: add one of "
    "these to it",
}  # fmt: skip


@pytest.mark.parametrize("given", WRONG, ids=" ".join)
def test_wrong_input_ends_in_one_line_and_leaves_nothing(
    given: tuple[str, str], folder: Path
) -> None:
    Path("latin.txt").write_bytes(b"Gr\xfc\xdfe" * 20)
    Tokenizer(models.BPE(vocab={"<stop>": 0}, merges=[])).save("stop.json")
    with pytest.raises(DataError) as caught:
        made(*given)
    assert str(caught.value) == WRONG[given]
    left = [] if not Path(".primepar").exists() else list(Path(".primepar").iterdir())
    assert not [path for path in left if path.suffix != ".lock"]


def test_without_the_package_a_run_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "find_spec", lambda name: None)
    with pytest.raises(DataError) as caught:
        made("texts")
    assert str(caught.value) == (
        "training.tokenizer: expected the package tokenizers, found none: run pip install "
        "'primepar[text]'"
    )


def test_a_run_trains_on_the_tokens(folder: Path) -> None:
    sizes = ("layers=1", "hidden=8", "heads=1", "context=8")
    given = [word for size in sizes for word in ("--set", f"model.{size}")]
    done = run("train", "--data", "texts/*.txt", "--set", "training.tokenizer=300", "--steps", "1",
               "--set", "output.log=log.jsonl", *given)  # fmt: skip
    assert (done.code, done.err) == (0, "")
    (name,) = Path(".primepar").glob("tokens-*.bin")
    header, _ = open_tokens(name)
    assert f"{header.train.tokens} tokens of {name}\n" in done.out
    assert json.loads(Path("log.jsonl").read_text().splitlines()[0])["model"]["vocabulary"] == 300
