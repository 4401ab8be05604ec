"""The model's vocabulary next to the data's: taken from it, or compared with it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from primepar.distributed.text.token_file import SUFFIX, read_header
from primepar.distributed.training.data import Text
from primepar.distributed.training.settings import LEAST_VOCABULARY, Settings
from primepar.errors import DataError


def with_vocabulary(settings: Settings) -> Settings:
    """Return the settings with the vocabulary of the data, where neither they nor a plan have one.

    Raises `DataError` if the data is a file of tokens whose side file cannot be read.
    """
    given = settings.vocabulary is not None or settings.plan_file is not None
    if given or settings.data is None or not settings.data.endswith(SUFFIX):
        return settings
    entries = read_header(Path(settings.data)).vocabulary
    return msgspec.structs.replace(settings, vocabulary=max(LEAST_VOCABULARY, entries))


def check_vocabulary(text: Text, entries: int, settings: Settings) -> None:
    """Raise `DataError` if the model has fewer `entries` than the tokenizer of the data."""
    if entries < text.vocabulary:
        instead = (
            f"add --set model.vocabulary={text.vocabulary}"
            if settings.plan_file is None
            else "take a plan for a larger model"
        )
        raise DataError(
            f"{text.name}: expected tokens of a tokenizer that fits the model's vocabulary of "
            f"{entries}, got one with {text.vocabulary} entries: {instead}, or make the tokens "
            "with a smaller one"
        )
