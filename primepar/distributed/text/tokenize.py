"""Texts as a file of tokens, which a run makes once, and finds when it starts again.

The file is in `.primepar` of the working folder. Its name has a digest of the texts' paths, sizes
and times of change, and of the tokenizer: another text or tokenizer makes another file. Of the
processes of a machine one makes it, while the others wait.

A tokenizer that is trained here is byte-level BPE as in GPT-2 (Sennrich et al., 2016; Radford et
al., 2019): every text can be encoded, and decoding gives back the same bytes. It sees nothing of
what is held out, the last tenth of the bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import wrap_file

from primepar.distributed.text.token_file import TextPart, TokenHeader, page_digest, side_file
from primepar.errors import DataError, TextError
from primepar.files import publish, reason, replace
from primepar.reading import json_of, open_input, read_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CACHE = Path(".primepar")
"""Folder of the files of tokens that runs make."""
PIECE = 1 << 20
"""Bytes of a document that are encoded together; a longer one is cut after a line."""
_TOGETHER = 4
"""Pieces that are encoded at once, on all cores."""
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""Tokens that end a document, in well-known tokenizers; the first in those that are trained."""
LEAST_ENTRIES = 257
"""All bytes and the end of a text."""


class TextPiece(NamedTuple):
    """A part of a document, on one side of the border of what is held out."""

    text: str
    size: int
    """Bytes that the text has as UTF-8."""
    held_out: bool


def text_files(data: str) -> list[Path]:
    """Return the texts that `training.data` names: a file, a folder or a pattern, in name order.

    Raises `DataError` where a folder or a pattern has none.
    """
    path = Path(data)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    elif "*" in data and not path.exists():
        start = Path(path.anchor)
        files = sorted(file for file in start.glob(str(path.relative_to(start))) if file.is_file())
    else:
        return [path]
    if not files:
        raise DataError(f"{data}: expected files of text to train on, found none: check --data")
    return files


def tokenized(files: list[Path], given: str) -> Path:
    """Return the file of tokens of some texts, which is made unless it is there already.

    `given` is the path of a tokenizer.json, or the number of entries of one to train. Raises
    `DataError` for a text or a tokenizer that cannot be read, and if there is no room.
    """
    if find_spec("tokenizers") is None:
        raise DataError(
            "training.tokenizer: expected the package tokenizers, found none: "
            "run pip install 'primepar[text]'"
        )
    content = b"" if given.isdecimal() else _tokenizer_content(given)
    key = sha256(content + given.encode() * given.isdecimal())
    try:
        sizes = [path.stat().st_size for path in files]
        for path in files:
            key.update(f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        output = CACHE / f"tokens-{key.hexdigest()[:12]}.bin"
        if side_file(output).is_file():
            return output
        with _alone(output):
            if not side_file(output).is_file():  # nor has another process made it meanwhile
                # As many bytes as `Text.of` holds out of a text that is read as bytes.
                cut = sum(sizes) - sum(sizes) // 10
                _write(output, files, cut, _tokenizer(given, content, files, cut))
    except OSError as error:
        raise DataError(
            f"{error.filename or output}: expected to read texts and to write tokens into "
            f"{CACHE}, got {reason(error)}: check --data, or make room"
        ) from None
    return output


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Let one process of this machine in, so that the others find what it has made."""
    CACHE.mkdir(exist_ok=True)
    with output.with_suffix(".lock").open("w") as lock:
        with suppress(OSError):  # without locks each makes the same file, and the last one stays
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tokenizer_content(given: str) -> bytes:
    try:
        content = read_bytes(Path(given))
        json_of(content, dict)
    except OSError as error:
        raise DataError(
            f"training.tokenizer {given}: expected a tokenizer.json, got {reason(error)}: check "
            "the path, or write a number of entries to train one"
        ) from None
    except (TextError, msgspec.ValidationError) as error:
        raise DataError(f"training.tokenizer {given}: {error}") from None
    return content


def _tokenizer(given: str, content: bytes, files: list[Path], cut: int) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, or train one on what is not held out."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer

    if not given.isdecimal():
        try:
            return Tokenizer.from_str(content.decode())
        except Exception as error:
            raise DataError(
                f"training.tokenizer {given}: expected a tokenizer.json as the package tokenizers "
                f"writes it, got {' '.join(str(error).split())}: give that of the model"
            ) from None
    if int(given) < LEAST_ENTRIES:
        raise DataError(
            f"training.tokenizer: expected {LEAST_ENTRIES} entries or more, for all bytes and the "
            f"end of a text, got {given}"
        )
    bytewise = ByteLevelBPETokenizer()
    texts = (piece.text for piece in _pieces(files, cut) if piece and not piece.held_out)
    bytewise.train_from_iterator(
        texts, int(given), special_tokens=[_ENDS[0]], show_progress=False
    )  # fmt: skip
    return Tokenizer.from_str(bytewise.to_str())


def _pieces(files: list[Path], cut: int) -> Iterator[TextPiece | None]:
    """Yield the documents in pieces, and None after each that is not empty.

    Those from the byte `cut` on are held out, counted over all files; a piece across this border is
    cut there, after the character. Raises `DataError` for what is not UTF-8.
    """
    console, begin = Console(stderr=True), 0
    for path in files:
        start = begin
        with (
            open_input(path) as opened,
            wrap_file(
                opened, os.fstat(opened.fileno()).st_size, description=path.name, console=console,
                transient=True, disable=not console.is_terminal,
            ) as file,
        ):  # fmt: skip
            while content := b"".join(file.readlines(PIECE)):
                border = min(max(0, cut - begin), len(content))
                while border < len(content) and content[border] & 0xC0 == 0x80:
                    border += 1
                for held_out, part in ((False, content[:border]), (True, content[border:])):
                    if part:
                        yield TextPiece(_decoded(path, begin - start, part), len(part), held_out)
                    begin += len(part)
        if begin > start:
            yield None


def _decoded(path: Path, begin: int, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8, got the byte 0x{content[error.start]:02x} at "
            f"{begin + error.start}: convert the file, or leave it out"
        ) from None


def _write(output: Path, files: list[Path], cut: int, tokenizer: Tokenizer) -> None:
    """Write tokens and side file; they get their names when both are whole."""
    ends = [tokenizer.token_to_id(name) for name in _ENDS]
    end = next((token for token in ends if token is not None), None)
    if end is None:
        raise DataError(
            f"training.tokenizer: expected a token that ends a document, found none of "
            f"{', '.join(_ENDS)} in the tokenizer: add one of these to it"
        )
    vocabulary = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
    dtype: Literal["uint16", "uint32"] = "uint16" if vocabulary <= 2**16 else "uint32"
    unknown_token = _unknown_token(tokenizer)
    tokenizer.encode_special_tokens = True  # what looks like one inside a text is text
    counts, digest, unknown = {False: [0, 0], True: [0, 0]}, sha256(), 0
    part, pieces, held_out = output.with_suffix(".part"), _pieces(files, cut), False
    try:
        with part.open("wb") as file:
            while group := list(islice(pieces, _TOGETHER)):
                texts = [piece.text for piece in group if piece]
                encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
                for piece in group:
                    tokens = next(encoded).ids if piece else [end]
                    held_out = piece.held_out if piece else held_out
                    counts[held_out][0] += len(tokens)
                    counts[held_out][1] += piece.size if piece else 0
                    unknown += 0 if unknown_token is None else tokens.count(unknown_token)
                    content = np.array(tokens, np.dtype(dtype).newbyteorder("<")).tobytes()
                    file.write(content)
                    digest.update(content)
        if not all(counts[held_out][1] for held_out in (False, True)):
            raise DataError(
                f"{files[0]}: expected text to train on and to hold out, got "
                f"{sum(size for _, size in counts.values())} bytes: give more text"
            )
        header = TokenHeader(
            dtype=dtype, vocabulary=vocabulary, train=TextPart(*counts[False]),
            held_out=TextPart(*counts[True]), unknown=unknown, digest=digest.hexdigest(),
            pages=page_digest(part),
        )  # fmt: skip
        replace(output.with_suffix(".tokenizer.json"), tokenizer.to_str().encode())
        publish(part, output)
        replace(side_file(output), msgspec.json.format(msgspec.json.encode(header), indent=2))
    finally:
        part.unlink(missing_ok=True)


def _unknown_token(tokenizer: Tokenizer) -> int | None:
    """Return the token for what the tokenizer does not know; None if it knows every text."""
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    name = model.get("unk_token")
    return None if name is None else tokenizer.token_to_id(name)
