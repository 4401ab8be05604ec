"""Where in the user's source a call comes from."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

# The package may be imported by a symbolic link: a frame has the path that Python found it by.
_OURS = tuple(str(path.parents[2]) for path in (Path(__file__), Path(__file__).resolve()))
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def source_line() -> str:
    """The innermost line of the user's files, `train.py:42`.

    Of a library, only where no file of the user called it. Empty where Python runs no file at all.
    """
    return line_of(sys._getframe(1))


def line_of(frame: FrameType | None) -> str:
    """The innermost line of the user's files from a frame outwards."""
    library = ""
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind == "user":
            return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"
        if kind == "library" and not library:
            library = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return library


def caller() -> str:
    """The file of the innermost frame that is not ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _kind(frame.f_code.co_filename) == "ours":
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def by_torch_or_logging() -> bool:
    """Whether torch, or the log, has called what runs now."""
    return any(f"{os.sep}{name}{os.sep}" in caller() for name in ("torch", "logging"))


def by_dtensor() -> bool:
    """Whether DTensor has called what runs now."""
    part = f"{os.sep}distributed{os.sep}tensor{os.sep}"
    return any(part in frame.f_code.co_filename for frame in _since_the_user(sys._getframe(1)))


def by_initializer() -> bool:
    """Whether torch draws the first values of a parameter, until they are within bounds."""
    frames, file = _since_the_user(sys._getframe(1)), f"{os.sep}nn{os.sep}init.py"
    return any(frame.f_code.co_filename.endswith(file) for frame in frames)


def by_index() -> bool:
    """Whether a library looks an index up, as a memory-mapped array does."""
    names = (frame.f_code.co_name for frame in _since_the_user(sys._getframe(1)))
    return "__getitem__" in names


def _since_the_user(frame: FrameType | None) -> Iterator[FrameType]:
    """Frames outwards, up to those of the user's files."""
    while frame is not None and _kind(frame.f_code.co_filename) != "user":
        yield frame
        frame = frame.f_back


def is_users(path: str) -> bool:
    """Whether a file is the user's, and not of a library."""
    return _kind(path) == "user"


@cache
def _kind(path: str) -> str:
    """`user`, `library` for what is installed, or `ours` for this package and generated code."""
    if path.startswith((*_OURS, "<")):
        return "ours"
    return "library" if path.startswith(_LIBRARIES) else "user"


@cache
def shown(path: str) -> str:
    """A path as seen from the working directory, if it is inside."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return path
