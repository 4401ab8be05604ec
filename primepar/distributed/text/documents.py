"""The documents of a text: files, read in pieces that fit into memory, as UTF-8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from primepar.errors import DataError
from primepar.files import reason
from primepar.reading import open_input

PIECE = 1 << 20
"""Bytes of a document that are read and encoded together; a longer one is cut after a line."""
_LONGEST = 4
"""Bytes of a character of UTF-8, at most."""


@dataclass(frozen=True)
class TextPiece:
    """A part of a document as text."""

    text: str
    size: int
    """Bytes that the text has as UTF-8."""
    held_out: bool
    """Whether it is of the held-out part."""
    last: bool
    """Whether the document ends with it."""


@dataclass(frozen=True)
class Documents:
    """Files in the order in which they are read.

    The held-out part is the end of the text: the bytes from `cut` on, counted over all files. A
    document that this border falls into is cut after the character there.
    """

    paths: tuple[Path, ...]
    sizes: tuple[int, ...]
    cut: int

    @classmethod
    def of(
        cls, texts: Sequence[Path], pattern: str, held_out: float, without: Sequence[Path] = ()
    ) -> Documents:
        """List files, and those of folders that match a pattern, in name order.

        `held_out` is the share of the bytes to hold out. `without` are files that a folder may
        have and that are no texts, as those of an earlier run. Raises `DataError` for a text that
        is missing, and where there is none or too little to hold any out.
        """
        others = {path.resolve() for path in without}
        matching = (path for text in texts for path in _files(text, pattern))
        paths = [path for path in matching if path in texts or path.resolve() not in others]
        sizes = [path.stat().st_size for path in paths]
        size = sum(sizes)
        if not size:
            raise DataError(
                f"{', '.join(map(str, texts))}: expected text, got "
                f"{len(paths)} empty file{'s' * (len(paths) != 1)}: give other files"
            )
        cut = size - int(size * held_out)
        if not 0 < cut < size:
            raise DataError(
                f"--held-out: expected a share that leaves bytes on both sides, got {held_out} of "
                f"{size} bytes: take another one, or more text"
            )
        return cls(tuple(paths), tuple(sizes), cut)

    @property
    def size(self) -> int:
        """Bytes of all documents."""
        return sum(self.sizes)

    def pieces(self) -> Iterator[TextPiece]:
        """Yield the documents in pieces, in order. Raises `DataError` for what is not UTF-8."""
        begin = 0
        for path, size in zip(self.paths, self.sizes, strict=True):
            yield from _pieces(path, size, self.cut - begin)
            begin += size


def _files(text: Path, pattern: str) -> list[Path]:
    """The file itself, or the files of a folder. Raises `DataError` if there are none."""
    if text.is_file():
        return [text]
    if not text.is_dir():
        raise DataError(f"{text}: expected a file or a folder of text, found none: check the path")
    try:
        matching = sorted(path for path in text.rglob(pattern) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        raise DataError(f"--pattern {pattern}: expected one like '*.txt', got {error}") from None
    if not matching:
        raise DataError(
            f"{text}: expected files that match {pattern!r}, found none: give another --pattern"
        )
    return matching


def _pieces(path: Path, size: int, cut: int) -> Iterator[TextPiece]:
    """Yield a document in pieces; those from the byte `cut` on are held out."""
    begin = 0
    try:
        with open_input(path) as file:
            while begin < size:
                here = min(PIECE, size - begin)
                before = begin < cut
                if before:
                    here = min(here, cut - begin)
                file.seek(begin)
                content = file.read(here + _LONGEST)
                border = begin + here == cut
                length = here if begin + here == size else _end(content, here, after=border)
                text = _decoded(path, begin, content[:length])
                if len(content) < length:
                    raise DataError(f"{path}: expected {size} bytes, as it had before, got fewer: "
                                    "leave the texts as they are meanwhile")  # fmt: skip
                begin += length
                yield TextPiece(text, length, not before, begin >= size)
    except OSError as error:
        raise DataError(f"{path}: expected text to read, got {reason(error)}") from None


def _end(content: bytes, here: int, *, after: bool) -> int:
    """Return where to end a piece of about `here` bytes, never inside a character.

    It is after the last line, or with `after` at the first character from `here` on.
    """
    line = content.rfind(b"\n", 0, here)
    if line >= 0 and not after:
        return line + 1
    while here < len(content) and content[here] & 0xC0 == 0x80:
        here += 1
    return here


def _decoded(path: Path, begin: int, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8, got the byte 0x{content[error.start]:02x} at "
            f"{begin + error.start}: convert the file, or leave it out"
        ) from None
