"""Reads the files of users: regular files of a bounded size, UTF-8, and every key once.

What is wrong with a file before its content means anything is refused here, so that all readers
refuse the same: a pipe, a device, a byte order mark, broken text, lists nested too deeply, numbers
of thousands of digits, a key twice. What the content has to be is stated by the type that a reader
gives to msgspec.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable
from errno import EFBIG, EISDIR, ESPIPE
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec

from primepar.errors import PrimeParError, TextError
from primepar.files import note_input, reason

T = TypeVar("T")
HIDDEN = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u180e"
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"
)
"""Inside `[...]` of a regular expression: what a terminal obeys and does not show.

Control and format characters and separators of lines (Unicode's Cc, Cf, Zl, Zp), as those that
reverse the direction of text.
"""
LARGEST = 1 << 31
"""Bytes of a file that is read whole."""
LARGEST_TOML = 1 << 18
_MARKS = (BOM_UTF8, BOM_UTF16_LE, BOM_UTF16_BE)
MOST_DIGITS, MOST_PARTS = 300, 32
"""Of a number, and of a dotted key, in TOML."""
_TOML_TOKEN = re.compile(
    r"""
    \#[^\n]*                                            # a comment
    | \"{3}(?:\\.|[^\\])*?(?:\"{3}|\Z) | '{3}.*?(?:'{3}|\Z)
    | (?P<part> "(?:\\.|[^"\\\n])*+"? | '[^'\n]*+'? | [\w+-]++ )
    | (?P<space> [ \t]++ )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def open_input(path: Path, *, ours: bool = False) -> BinaryIO:
    """Open a file to read it. `ours` is a file that the command writes itself, and no input.

    Raises `OSError` if it is missing, a folder, a pipe or a device, and `OutputError`.
    """
    # Not to wait for the other end of a pipe.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(number)
        if S_ISDIR(status.st_mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not S_ISREG(status.st_mode):
            raise OSError(ESPIPE, "a pipe or a device")
        if not ours:
            note_input(path, status)
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_bytes(path: Path, most: int | None = LARGEST, *, ours: bool = False) -> bytes:
    """Return the content of a file of at most `most` bytes. Raises as `open_input` does."""
    with open_input(path, ours=ours) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(EFBIG, f"{size} bytes, more than {most}")
        return file.read() if most is None else file.read(most)


def read_json(
    path: Path,
    kind: type[T],
    what: str,
    error: type[PrimeParError],
    wording: Callable[[Exception, bytes], str] | None = None,
    *,
    ours: bool = False,
) -> T:
    """Return the content of a JSON file as a type that msgspec knows.

    `what` is expected of the file, as `a plan file`. `wording` states what is wrong with JSON that
    is no such thing, from what msgspec, or the type itself, raises. Raises `error` in one line.
    """
    try:
        content = read_bytes(path, ours=ours)
    except OSError as refused:
        raise error(f"{path}: expected {what}, got {reason(refused)}") from None
    try:
        return json_of(content, kind)
    except TextError as refused:
        raise error(f"{path}: {refused}") from None
    except (msgspec.ValidationError, PrimeParError) as refused:
        of_type = isinstance(refused, PrimeParError)
        plain = str(refused) if of_type else f"expected {what}, got {refused}"
        raise error(f"{path}: {wording(refused, content) if wording else plain}") from None


def json_of(content: bytes, kind: type[T]) -> T:
    """Return a JSON text as a type that msgspec knows.

    Raises `TextError` for what is no JSON, or has a key twice, `msgspec.ValidationError` for what
    is none of the type, and what the type raises.
    """
    text = text_of(content, "JSON")
    try:
        value = msgspec.json.decode(text, type=kind)
        # msgspec, as every parser, takes the last of two values in silence. The hook keeps none of
        # the objects, so that they take no memory.
        _parsed(text, _once)
    except RecursionError:
        raise TextError("expected JSON, got it nested too deeply") from None
    except _TwiceError:
        raise TextError(f"{_place_of_twice(text)}: expected the key once, got it twice: leave one "
                        "out") from None  # fmt: skip
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, ValueError) as error:
        message = " ".join(str(error).split())
        raise TextError(f"expected JSON, got broken text: {message}") from None
    return value


def text_of(content: bytes, language: str) -> str:
    """Return bytes as text. Raises `TextError` for a byte order mark, and for what is not UTF-8."""
    if content.startswith(_MARKS):
        raise TextError(
            f"expected {language} in UTF-8, got a byte order mark: save it as UTF-8 without one"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise TextError(
            f"expected {language} in UTF-8, got the byte 0x{content[error.start]:02x} at "
            f"{error.start}: save it as UTF-8"
        ) from None


def _parsed(text: str, hook: Callable[[list[tuple[str, Any]]], object]) -> Any:
    """Parse JSON for its objects alone: a number becomes that of its digits, however many."""
    return json.loads(text, object_pairs_hook=hook, parse_int=len, parse_float=len)


class _TwiceError(Exception):
    """An object has a key twice."""


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise _TwiceError


def _place_of_twice(text: str) -> str:
    """The JSON path of the first key that an object has twice, `$.programs[0][1].op`."""
    waiting: list[tuple[str, Any]] = [("$", _parsed(text, _Pairs))]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, _Pairs):
            keys = set[str]()
            for key, _ in value.pairs:
                if key in keys:
                    return f"{place}.{key}"
                keys.add(key)
            waiting += [(f"{place}.{key}", inside) for key, inside in reversed(value.pairs)]
        elif isinstance(value, list):
            waiting += [(f"{place}[{i}]", value[i]) for i in reversed(range(len(value)))]
    raise AssertionError(text)


class _Pairs(NamedTuple):
    pairs: list[tuple[str, Any]]


def toml_of(content: bytes) -> dict[str, Any]:
    """Return a TOML text as a table. Raises `TextError` for what is no TOML."""
    text = text_of(content, "TOML")
    if len(content) > LARGEST_TOML:
        raise TextError(f"expected TOML of at most {LARGEST_TOML} bytes, got {len(content)}")
    _check_toml(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TextError("expected TOML, got it nested too deeply") from None
    except ValueError as error:
        raise TextError(f"expected TOML, got broken text: {error}") from None


def _check_toml(text: str) -> None:
    """Raise `TextError` for numbers and keys that tomllib takes too long, or too much memory, for.

    Python converts digits in quadratic time, and refuses more than 4,300 of them. Of the key
    `a.b.c` tomllib keeps `a`, `a.b` and `a.b.c`: one of 20,000 parts takes 1.6 GB.
    """
    dots, after_dot = 0, False
    for token in _TOML_TOKEN.finditer(text):
        if token["space"]:
            continue
        word = token[0]
        # In `a . b` the part `b` goes on with the key of `a`; in `a.b c` the part `c` does not.
        dots = dots + 1 if word == "." else dots if token["part"] and after_dot else 0
        after_dot = word == "."
        digits = len(word) if word.lstrip("+-")[:1].isdigit() else 0
        for expected, got, most in (
            (f"a key of at most {MOST_PARTS} parts", dots + 1, MOST_PARTS),
            (f"a number of at most {MOST_DIGITS} digits", digits, MOST_DIGITS),
        ):
            if got > most:
                line = text.count("\n", 0, token.start()) + 1
                raise TextError(f"expected {expected}, got a longer one (at line {line})")
