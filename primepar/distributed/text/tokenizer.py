"""The tokenizer of a text: read from a `tokenizer.json`, or trained on the text.

A tokenizer that is trained here is byte-level BPE as in GPT-2 (Sennrich et al., 2016; Radford et
al., 2019): every text can be encoded, and decoding gives back the same bytes. This is the only
module that imports the package `tokenizers`, which does both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from primepar.errors import DataError, TextError
from primepar.files import reason
from primepar.reading import json_of, read_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
_KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""Tokens that end a document in well-known tokenizers."""
LEAST_VOCABULARY = 257
"""All bytes and the end of a text."""


def check_installed() -> None:
    """Raise `DataError`, with the command that installs it, if `tokenizers` is missing."""
    if find_spec("tokenizers") is None:
        raise DataError(
            "tokenize: expected the package tokenizers, found none: "
            "run pip install 'primepar[text]'"
        )


def trained_tokenizer(pieces: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train byte-level BPE with at most `vocabulary` entries; a short text has fewer pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocabulary < LEAST_VOCABULARY:
        raise DataError(
            f"--train-vocabulary: expected {LEAST_VOCABULARY} or more, for all bytes and the end "
            f"of a text, got {vocabulary}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    return tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`. Raises `DataError` if it is missing or of another kind."""
    from tokenizers import Tokenizer

    try:
        content = read_bytes(path)
        json_of(content, dict)
    except OSError as error:
        raise DataError(
            f"--tokenizer {path}: expected a tokenizer.json, got {reason(error)}: check the path, "
            "or train one with --train-vocabulary N"
        ) from None
    except (TextError, msgspec.ValidationError) as error:
        raise DataError(f"--tokenizer {path}: {error}") from None
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:
        raise _no_tokenizer(path, " ".join(str(error).split())) from None


def _no_tokenizer(path: Path, got: str) -> DataError:
    return DataError(
        f"--tokenizer {path}: expected a tokenizer.json as the package tokenizers writes it, got "
        f"{got}: give that of the model, or train one with --train-vocabulary N"
    )


def entries(tokenizer: Tokenizer) -> int:
    """Return the vocabulary: one more than the largest token."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def end_of_text(tokenizer: Tokenizer, named: str | None) -> int:
    """Return the token that ends a document. Raises `DataError` if the tokenizer has none."""
    for name in (named,) if named is not None else _KNOWN_ENDS:
        token: int | None = tokenizer.token_to_id(name)
        if token is not None:
            return token
    if named is not None:
        raise DataError(f"--end-of-text {named}: expected a token of the tokenizer, got none of "
                        "this name: check its tokenizer.json")  # fmt: skip
    raise DataError(
        f"--end-of-text: expected a token that ends a document, found none of "
        f"{', '.join(_KNOWN_ENDS)} in the tokenizer: name the one that it has"
    )


def unknown_token(tokenizer: Tokenizer) -> int | None:
    """Return the token for what the tokenizer does not know; None if it knows every text."""
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    name = model.get("unk_token")
    return None if name is None else tokenizer.token_to_id(name)


def tokenizer_json(tokenizer: Tokenizer) -> bytes:
    """Return the content of its tokenizer.json."""
    text: str = tokenizer.to_str(pretty=True)
    return text.encode() + b"\n"


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a tokenizer.json."""
    return sha256(content).hexdigest()
