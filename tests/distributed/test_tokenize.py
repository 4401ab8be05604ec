"""`primepar tokenize`: what it writes, what a run reads back, and every wrong input in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run
from tokenizers import Tokenizer

from primepar.distributed.text import documents, tokenizer, write_tokens
from primepar.distributed.training.data import Text, load_text
from primepar.errors import DataError

WORDS = [f"line {n}: the cat sat on the mat {n * n}\n" for n in range(400)]
BODY = "".join(WORDS) + "Grüße, 你好, <|endoftext|> is text here\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, where the command runs."""
    monkeypatch.chdir(tmp_path)
    Path("texts/inner").mkdir(parents=True)
    Path("texts/a.txt").write_text(BODY)
    Path("texts/inner/b.txt").write_text(BODY[::-1])
    Path("texts/c.md").write_text("A page.\n" * 50)
    Path("texts/empty.txt").touch()
    return tmp_path


def made(*words: str) -> dict[str, Any]:
    """Run the command; return what it prints as JSON."""
    done = run("tokenize", *words, "--json")
    assert (done.code, done.err) == (0, "")
    answer: dict[str, Any] = json.loads(done.out)
    return answer


def refused(*words: str) -> str:
    done = run("tokenize", *words)
    assert (done.code, done.out) == (2, "")
    return done.err.removeprefix("primepar: error: ").removesuffix("\n")


def text_of(path: str, size: int) -> list[int]:
    tokens = np.fromfile(path, "<u2" if size == 2 else "<u4")
    return [int(token) for token in tokens]


def test_the_tokens_decode_to_the_texts(folder: Path) -> None:
    header = made("texts", "-o", "tokens.bin", "--train-vocabulary", "300", "--pattern", "*.txt")
    tokens, end = text_of("tokens.bin", 2), header["end_of_text"]
    ends = [place for place, token in enumerate(tokens) if token == end]
    assert len(ends) == 2
    coder = Tokenizer.from_file("tokenizer.json")
    assert coder.decode(tokens[: ends[0]], skip_special_tokens=False) == BODY
    assert coder.decode(tokens[ends[0] + 1 : ends[1]], skip_special_tokens=False) == BODY[::-1]
    assert header["sources"]["documents"] == 3
    assert header["train"]["tokens"] + header["held_out"]["tokens"] == len(tokens)
    size = 2 * len(BODY.encode())
    assert header["held_out"]["bytes"] == pytest.approx(size / 10, abs=4)
    assert header["train"]["bytes"] + header["held_out"]["bytes"] == size
    assert json.loads(Path("tokens.bin.json").read_text()) == header


def test_the_parts_are_those_of_the_same_text_as_bytes(folder: Path) -> None:
    """One document: its last tenth is held out, as of bytes, up to a character of UTF-8."""
    made("texts/a.txt", "-o", "tokens.bin", "--train-vocabulary", "300")
    text, letters = load_text("tokens.bin", 2, 8), load_text("texts/a.txt", 2, 8)
    coder = Tokenizer.from_file("tokenizer.json")
    assert coder.decode(text.train.tolist()).encode() == letters.train.tobytes()
    assert coder.decode(text.held_out.tolist()[:-1]).encode() == letters.held_out.tobytes()
    assert text.held_out_bytes == len(letters.held_out)
    loss = 2.5
    assert text.bits_per_byte(loss) == pytest.approx(
        loss / np.log(2) * len(text.held_out) / len(letters.held_out)
    )
    assert (text.unit, letters.unit) == ("tokens", "bytes")


def test_the_same_texts_and_tokenizer_give_the_same_file(folder: Path) -> None:
    made("texts", "-o", "tokens.bin", "--train-vocabulary", "300")
    made("texts", "-o", "again.bin", "--tokenizer", "tokenizer.json")
    Path("other").mkdir()
    made("texts", "-o", "other/tokens.bin", "--train-vocabulary", "300")
    whole = Path("tokens.bin").read_bytes()
    assert Path("again.bin").read_bytes() == Path("other/tokens.bin").read_bytes() == whole
    assert Path("other/tokenizer.json").read_bytes() == Path("tokenizer.json").read_bytes()


def test_what_an_earlier_run_wrote_is_no_text(folder: Path) -> None:
    first = made(".", *NEW, "--pattern", "*")
    assert made(".", *NEW, "--pattern", "*", "--force") == first
    assert first["sources"]["documents"] == 4


def test_pieces_change_no_byte_of_a_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made("texts/a.txt", "-o", "whole.bin", "--train-vocabulary", "300")
    whole = load_text("whole.bin", 2, 8)
    coder = Tokenizer.from_file("tokenizer.json")
    for size in (1, 3, 64):
        monkeypatch.setattr(documents, "PIECE", size)
        monkeypatch.setattr(write_tokens, "_TOGETHER", 3 * size)
        made("texts/a.txt", "-o", "cut.bin", "--tokenizer", "tokenizer.json", "--force")
        cut = load_text("cut.bin", 2, 8)
        for part in ("train", "held_out"):
            letters = [coder.decode(getattr(text, part).tolist()) for text in (whole, cut)]
            assert letters[0] == letters[1]


def test_no_tokenizer_is_trained_on_what_is_held_out(folder: Path) -> None:
    Path("plain.txt").write_text("ab " * 900 + "zq" * 150)
    made("plain.txt", "-o", "tokens.bin", "--train-vocabulary", "300")
    learned = Tokenizer.from_file("tokenizer.json").get_vocab()
    assert "ab" in learned
    assert "zq" not in learned


def test_a_larger_vocabulary_takes_four_bytes(folder: Path) -> None:
    from tokenizers import models, pre_tokenizers

    letters = {letter: 70_000 + n for n, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    wide = Tokenizer(models.BPE(vocab={**letters, "</s>": 3}, merges=[]))
    wide.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    wide.save("wide.json")
    header = made("texts/c.md", "-o", "wide.bin", "--tokenizer", "wide.json")
    assert (header["dtype"], header["vocabulary"], header["end_of_text"]) == ("uint32", 70_256, 3)
    tokens = text_of("wide.bin", 4)
    assert tokens == [*(letters[chr(288) if byte == " " else "Ċ" if byte == "\n" else byte]
                        for byte in "A page.\n" * 50), 3]  # fmt: skip
    assert load_text("wide.bin", 2, 8).vocabulary == 70_256


def test_unknown_tokens_are_counted(folder: Path) -> None:
    from tokenizers import models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"A": 1, "<unk>": 2, "</s>": 3, ".": 4}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save("words.json")
    done = run("tokenize", "texts/c.md", "-o", "tokens.bin", "--tokenizer", "words.json")
    assert done == (
        0,
        "tokens.bin: 151 tokens of uint16, 2.65 bytes each, of 1 document; 16 tokens are held out\n"
        "vocabulary of 5, words.json; train with primepar train --data tokens.bin\n"
        "50 tokens are unknown to the tokenizer: bits per byte leave them out\n",
        "",
    )
    assert json.loads(Path("tokens.bin.json").read_text())["unknown"] == 50


def test_a_token_file_is_read_by_memory_map(folder: Path) -> None:
    made("texts", "-o", "tokens.bin", "--train-vocabulary", "300")
    text = load_text("tokens.bin", 2, 8)
    assert isinstance(text.train, np.memmap)
    position = text.begin(0)
    tokens_BT, targets_BT = text.batch(position, 2, 8)
    samples = position.next_samples(2, text.windows(8))
    assert tokens_BT.tolist() == [text.train[8 * n : 8 * n + 8].tolist() for n in samples]
    assert targets_BT.tolist() == [text.train[8 * n + 1 : 8 * n + 9].tolist() for n in samples]


def test_the_summary_states_what_was_written(folder: Path) -> None:
    done = run("tokenize", "texts/c.md", "-o", "tokens.bin", "--train-vocabulary", "257")
    assert done == (
        0,
        "tokens.bin: 401 tokens of uint16, 1.00 bytes each, of 1 document; 41 tokens are held out\n"
        "vocabulary of 257, tokenizer.json; train with primepar train --data tokens.bin\n",
        "",
    )


NEW = ("-o", "tokens.bin", "--train-vocabulary", "300")
WRONG = {
    ("none", *NEW): "none: expected a file or a folder of text, found none: check the path",
    ("texts", "--pattern", "*.rst", *NEW): "texts: expected files that match '*.rst', found none: "
    "give another --pattern",
    ("texts", "--pattern", "/x", *NEW): "--pattern /x: expected one like '*.txt', got "
    "Non-relative patterns are unsupported",
    ("texts/empty.txt", *NEW): "texts/empty.txt: expected text, got 1 empty file: give other files",
    ("texts", "-o", "tokens.bin"): "tokenize: expected either --tokenizer tokenizer.json or "
    "--train-vocabulary N, got neither",
    ("texts", "--tokenizer", "t.json", *NEW): "tokenize: expected either --tokenizer "
    "tokenizer.json or --train-vocabulary N, got both",
    ("texts", "--end-of-text", "</s>", *NEW): "--end-of-text: expected none together with "
    "--train-vocabulary, whose tokenizer has one, got '</s>': leave it out",
    ("texts", "-o", "tokens.bin", "--train-vocabulary", "256"): "--train-vocabulary: expected 257 "
    "or more, for all bytes and the end of a text, got 256",
    ("texts", "-o", "tokens.npy", "--train-vocabulary", "300"): "-o tokens.npy: expected a name "
    "that ends with .bin, got tokens.npy: write -o tokens.bin",
    ("texts", "-o", "no/tokens.bin", "--train-vocabulary", "300"): "-o no/tokens.bin: expected a "
    "folder that is there, got no: make it first",
    ("texts", "--held-out", "1", *NEW): "--held-out: expected a share between 0 and 1, got 1.0: "
    "take 0.1",
    ("texts/c.md", "--held-out", "0.0001", *NEW): "--held-out: expected a share that leaves bytes "
    "on both sides, got 0.0001 of 400 bytes: take another one, or more text",
    ("texts", "-o", "tokens.bin", "--tokenizer", "no.json"): "--tokenizer no.json: expected a "
    "tokenizer.json, got no such file or directory: check the path, or train one with "
    "--train-vocabulary N",
    ("texts", "-o", "tokens.bin", "--tokenizer", "texts/latin.txt"): "--tokenizer texts/latin.txt: "
    "expected JSON in UTF-8, got the byte 0xfc at 2: save it as UTF-8",
    ("texts", "-o", "tokens.bin", "--tokenizer", "texts/c.md"): "--tokenizer texts/c.md: expected "
    "JSON, got broken text: JSON is malformed: invalid character (byte 0)",
    ("texts", *NEW): "texts/latin.txt: expected UTF-8, got the byte 0xfc at 2: convert the "
    "file, or leave it out",
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_input_ends_in_one_line_and_leaves_nothing(
    words: tuple[str, ...], folder: Path
) -> None:
    Path("texts/latin.txt").write_bytes(b"Gr\xfc\xdfe")
    before = sorted(folder.rglob("*"))
    assert refused(*words) == WRONG[words]
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.bin.json", "tokenizer.json"])
def test_nothing_is_overwritten_unasked(name: str, folder: Path) -> None:
    Path(name).write_text("mine")
    assert refused("texts", *NEW) == (
        f"{name}: expected no such file, got one: give another -o, or add --force to overwrite it"
    )
    assert Path(name).read_text() == "mine"
    made("texts", *NEW, "--force")
    assert Path(name).read_text(errors="replace") != "mine"


def test_a_tokenizer_without_an_end_of_text_is_refused(folder: Path) -> None:
    made("texts", *NEW)
    content = Path("tokenizer.json").read_text().replace(tokenizer.END_OF_TEXT, "<stop>")
    Path("stop.json").write_text(content)
    words = ("texts", "-o", "two.bin", "--tokenizer", "stop.json")
    assert refused(*words) == (
        "--end-of-text: expected a token that ends a document, found none of <|endoftext|>, "
        "<|end_of_text|>, </s>, <eos>, [SEP] in the tokenizer: name the one that it has"
    )
    assert refused(*words, "--end-of-text", "<end>") == (
        "--end-of-text <end>: expected a token of the tokenizer, got none of this name: check its "
        "tokenizer.json"
    )
    assert made(*words, "--end-of-text", "<stop>")["end_of_text"] == 0


def test_without_the_package_the_command_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "find_spec", lambda name: None)
    assert refused("texts", *NEW) == (
        "tokenize: expected the package tokenizers, found none: run pip install 'primepar[text]'"
    )


def test_a_text_that_shrinks_meanwhile_is_refused(folder: Path) -> None:
    listed = documents.Documents.of([Path("texts/a.txt")], "*", 0.1)
    Path("texts/a.txt").write_text("short")
    with pytest.raises(DataError) as caught:
        list(listed.pieces())
    assert str(caught.value) == (
        f"texts/a.txt: expected {len(BODY.encode())} bytes, as it had before, got fewer: leave the "
        "texts as they are meanwhile"
    )


def test_a_run_reads_what_was_written(folder: Path) -> None:
    made("texts", *NEW)
    text = load_text("tokens.bin", 4, 16)
    assert isinstance(text, Text)
    assert (text.name, text.vocabulary) == ("tokens.bin", 300)
