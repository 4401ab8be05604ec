"""Writes a file of tokens and its side file from documents and a tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from primepar.distributed.text.documents import PIECE, Documents, TextPiece
from primepar.distributed.text.token_file import (
    SourceTexts,
    TextPart,
    TokenHeader,
    TokenizerIdentity,
    dtype_of,
    page_digest,
    side_file,
)
from primepar.errors import DataError
from primepar.files import publish, reason, replace, target

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
"""Name of a tokenizer that is trained on the text, next to the tokens."""
Advance = Callable[[int], None]
"""Called with the bytes of text that were encoded since the last call."""
_TOGETHER = 4 * PIECE
"""Bytes that are encoded at once, on all cores."""


@dataclass(frozen=True)
class Encoder:
    """A tokenizer, the number of its entries, and its tokens of a special meaning."""

    tokenizer: Tokenizer
    vocabulary: int
    end_of_text: int
    unknown: int | None
    identity: TokenizerIdentity

    def encoded(self, pieces: list[TextPiece]) -> Iterator[list[int]]:
        """Yield the tokens of each piece; a document ends with the end of text.

        What looks like a special token inside a text is text.
        """
        self.tokenizer.encode_special_tokens = True
        texts = [piece.text for piece in pieces]
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for piece, encoding in zip(pieces, encodings, strict=True):
            yield encoding.ids + [self.end_of_text] * piece.last


def write_tokens(
    documents: Documents,
    encoder: Encoder,
    output: Path,
    advance: Advance,
    tokenizer: bytes | None = None,
) -> TokenHeader:
    """Encode the documents into `output` and write the side file; returns its content.

    `tokenizer` is the content of a tokenizer.json to write next to them. The files get their names
    when all are whole. Raises `DataError` if they cannot be written, or if a document is not UTF-8
    or changes meanwhile.
    """
    dtype = dtype_of(encoder.vocabulary)
    counts, unknown = {False: [0, 0], True: [0, 0]}, 0
    digest, sources = sha256(), sha256()
    with _new_file(output) as part:
        with part.open("wb") as file:
            for pieces in _together(documents.pieces()):
                for piece, tokens in zip(pieces, encoder.encoded(pieces), strict=True):
                    content = np.array(tokens, np.dtype(dtype).newbyteorder("<")).tobytes()
                    file.write(content)
                    digest.update(content)
                    sources.update(piece.text.encode())
                    unknown += tokens.count(encoder.unknown) if encoder.unknown is not None else 0
                    counts[piece.held_out][0] += len(tokens)
                    counts[piece.held_out][1] += piece.size
                advance(sum(piece.size for piece in pieces))
        header = TokenHeader(
            dtype=dtype,
            vocabulary=encoder.vocabulary,
            end_of_text=encoder.end_of_text,
            train=TextPart(*counts[False]),
            held_out=TextPart(*counts[True]),
            unknown=unknown,
            tokenizer=encoder.identity,
            sources=SourceTexts(len(documents.paths), sources.hexdigest()),
            digest=digest.hexdigest(),
            pages=page_digest(part),
        )
        if tokenizer is not None:
            replace(output.with_name(TOKENIZER), tokenizer)
        target(side_file(output)).unlink(missing_ok=True)
        publish(part, target(output))
        replace(side_file(output), msgspec.json.format(msgspec.json.encode(header), indent=2))
    return header


def _together(pieces: Iterator[TextPiece]) -> Iterator[list[TextPiece]]:
    group: list[TextPiece] = []
    for piece in pieces:
        group.append(piece)
        if sum(piece.size for piece in group) >= _TOGETHER:
            yield group
            group = []
    if group:
        yield group


@contextmanager
def _new_file(output: Path) -> Iterator[Path]:
    """Yield the path of a temporary file next to `output`, which is gone at the end."""
    part = None
    try:
        file = target(output)
        part = file.with_name(f".{file.name}.{os.getpid()}")
        yield part
    except OSError as error:
        raise DataError(
            f"{output}: expected a place to write to, got {reason(error)}: give another -o, or "
            "make room"
        ) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
