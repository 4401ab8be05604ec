"""Atomic file writes: a file is replaced as a whole, or not at all, and never one that was read.

Within `one_command` the files that are read are inputs, which no output may replace. Of

    primepar verify f.json --certificate f.json

the certificate is announced by `announce`, and then `f.json` is refused as soon as it is read.
Outside of a command, in a user's own program, a file that was read may be replaced.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP, ESPIPE
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path

from primepar.errors import OutputError, PrimeParError, TargetError


def check_ending(option: str, path: str | Path | None, **endings: str) -> None:
    """Raise `TargetError` unless an output has one of these endings, or there is none.

    `svg="the picture"` allows `x.svg`, and is what the message then calls it.
    """
    if path is None or Path(path).suffix[1:] in endings:
        return
    *others, last = (f".{ending}" + f" ({what})" * bool(what) for ending, what in endings.items())
    expected = f"{', '.join(others)} or {last}" if others else last
    raise TargetError(f"{option}: expected a name that ends with {expected}, got {path}")


class _Command:
    """The files of the command that runs: those that it reads, and those that it will replace."""

    def __init__(self) -> None:
        self.inputs: dict[_File, Path] = {}
        self.outputs: dict[_File, Path] = {}
        self.names: set[str] = set()
        """Where the outputs that were announced will be, links followed."""


_File = tuple[int, int]
"""Device and inode: another path, a link and a hard link to a file are the same file."""
_command: _Command | None = None


@contextmanager
def one_command() -> Iterator[None]:
    """Within it no output may replace an input: that raises `OutputError`."""
    global _command
    before, _command = _command, _Command()
    try:
        yield
    finally:
        _command = before


def note_input(path: Path, status: os.stat_result) -> None:
    """Note that the command reads a file. Raises `OutputError` if it is announced as an output."""
    if _command is not None:
        file = status.st_dev, status.st_ino
        if file in _command.outputs:
            raise _replaced(_command.outputs[file], path)
        _command.inputs[file] = path


def announce(path: Path) -> None:
    """Announce an output of the command before any work: an input is refused when it is read.

    Raises `OutputError` if it has been read, or if another output has the same name.
    """
    if _command is not None:
        name = os.path.realpath(path)
        if name in _command.names:
            raise OutputError(
                f"{path}: expected outputs of different names, got the same name twice: choose "
                "another one"
            )
        _command.names.add(name)
        _refuse_input(path)


def _refuse_input(path: Path) -> None:
    with suppress(OSError):
        status = path.stat()
        if _command is not None:
            file = status.st_dev, status.st_ino
            if file in _command.inputs:
                raise _replaced(path, _command.inputs[file])
            _command.outputs[file] = path


def _replaced(output: Path, read: Path) -> OutputError:
    return OutputError(
        f"{output}: expected an output that replaces no input, got {read}, which this command "
        "reads: choose another name"
    )


def target(path: Path) -> Path:
    """Return the file that an output replaces: where links lead, be it there or not.

    Raises `OutputError` for an input, and `OSError` for a cycle of links, a pipe or a device.
    """
    _refuse_input(path)
    file = Path(os.path.realpath(path))
    if file.is_symlink():
        raise OSError(ELOOP, os.strerror(ELOOP))
    if file.exists() and not file.is_file() and not file.is_dir():
        raise OSError(ESPIPE, "a pipe or a device")
    return file


def replace(path: Path, content: bytes) -> None:
    """Write a temporary file in the same folder, then rename it to `path`, or where that links to.

    Raises `OutputError` if it is an input, and `OSError` if it cannot be written; then the old file
    stays and no other file is left.
    """
    file = target(path)
    part = file.parent / f".{file.name}.{os.getpid()}"
    try:
        part.write_bytes(content)
        _rename(part, file)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _rename(part: Path, file: Path) -> None:
    """Give a finished file its name; what it replaces is no output any more, and can be read."""
    if _command is not None and file.exists():
        status = file.stat()
        _command.outputs.pop((status.st_dev, status.st_ino), None)
    part.replace(file)


def write_text(path: Path, text: str, error: type[PrimeParError] = PrimeParError) -> None:
    """`replace` for text; a failure becomes `error`, with a message of one line."""
    write_bytes(path, text.encode(), error)


def write_bytes(path: Path, content: bytes, error: type[PrimeParError] = PrimeParError) -> None:
    """`replace`; a failure becomes `error`, with a message of one line."""
    try:
        replace(path, content)
    except OSError as refused:
        raise error(f"{path}: expected a place to write to, got {reason(refused)}") from None


def reason(error: OSError) -> str:
    """Return the operating system's reason for an error, in lower case."""
    return (error.strerror or str(error)).lower()


def reserve(part: Path, head: bytes, size: int) -> None:
    """Create a file of `size` bytes, zeros after `head`; a full disk raises `OSError` here."""
    with part.open("wb") as file:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        file.write(head)


def publish(part: Path, path: Path) -> None:
    """Flush the finished file or folder `part` to disk and rename it to `path`, a `target`."""
    flush(part)
    _rename(part, path)


def flush(path: Path) -> None:
    """Write a file, or the entries of a folder, to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove(path: Path) -> None:
    """Delete a folder or a file, as far as it is there and may be deleted."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@cache
def digest_of_code(*packages: str) -> bytes:
    """Return a digest of the sources of some packages of primepar, or of all."""
    root, digest = Path(__file__).parent, sha256()
    # A package may be a link, which rglob follows only where it begins.
    folders = packages or sorted(path.name for path in root.iterdir() if path.is_dir())
    files = [] if packages else sorted(root.glob("*.py"))
    for path in chain(files, *(sorted((root / folder).rglob("*.py")) for folder in folders)):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.digest()
