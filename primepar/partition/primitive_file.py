"""Primitives of a user's own: `file.py:Class`, loaded once for each content of the file."""

from __future__ import annotations

import re
import runpy
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from primepar.errors import PrimitiveError, TargetError, nearest
from primepar.files import reason
from primepar.reading import read_bytes
from primepar.schedule.primitive import Primitive
from primepar.schedule.tracing import maps_of

LONGEST_LETTERS = 3
"""Length of a string from which on it is one name of an axis, and not a letter for each."""
_FILE = re.compile(r"(.*?\.py)(?::(.*))?")
_LENGTHS = re.compile(r"\d+(?:x\d+)*")


def names_file(token: str) -> bool:
    """Whether a part of a sequence names a Python file."""
    return _FILE.fullmatch(token) is not None


def files_of(sequence: str) -> list[Path]:
    """The Python files that the text of a sequence names."""
    matches = (_FILE.fullmatch(token.strip()) for token in sequence.split(","))
    return [Path(match[1]) for match in matches if match]


def load_with_lengths(token: str) -> tuple[Primitive, str]:
    """Load the primitive of `file.py:Class2x2`; returns it with the lengths, `2x2`.

    Its label is `file.py:Class`, so that the text of a sequence names it again. Of the classes that
    the text may mean the one with the longest name is taken. Raises what `load_primitive` does.
    """
    match = _FILE.fullmatch(token)
    assert match is not None
    file, spelt = match[1], match[2] or ""
    for name, lengths in _splits(spelt):
        try:
            primitive = load_primitive(f"{file}:{name}" if name else file)
        except TargetError as error:
            refused = error
        else:
            primitive.label = f"{file}:{type(primitive).__name__}"
            return primitive, lengths
    raise refused


def _splits(spelt: str) -> Iterator[tuple[str, str]]:
    """Names and lengths that a text may be read as, the longest name first.

    Examples:
        >>> list(_splits("Mine2x2"))
        [('Mine2x2', ''), ('Mine2x', '2'), ('Mine', '2x2')]
    """
    yield spelt, ""
    for place in range(len(spelt) - 1, 0, -1):
        if _LENGTHS.fullmatch(spelt[place:]):
            yield spelt[:place], spelt[place:]


def load_primitive(text: str) -> Primitive:
    """Load `file.py:Class`, or `file.py` with one primitive.

    Raises `TargetError` or, if the file raises, `PrimitiveError`.
    """
    file, _, name = text.partition(":")
    name = name.removeprefix(":")
    return primitive_of(text, _class_of(text, file, name, definitions(file)))


def definitions(file: str) -> Mapping[str, object]:
    """What a Python file defines. Raises `TargetError` or, if the file raises, `PrimitiveError`."""
    path = Path(file)
    if not path.is_file():
        raise TargetError(f"{file}: expected a Python file, {_other_file(path)}")
    try:
        content = read_bytes(path)
    except OSError as error:
        raise TargetError(f"{file}: expected a file to read, got {reason(error)}") from None
    return _namespace(file, path.resolve(), content)


@lru_cache(maxsize=64)
def _namespace(file: str, path: Path, content: bytes) -> Mapping[str, object]:
    """What a Python file defines; run once for each place and content."""
    try:
        return runpy.run_path(file, run_name=path.stem)
    except (Exception, SystemExit) as error:
        line = last_line(error, file)
        raise PrimitiveError(
            f"{file}:{line}: expected a file that can be imported, "
            f"got {type(error).__name__}: {' '.join(str(error).split())}{_install(error)}"
        ) from None


def primitive_of(text: str, kind: type[Primitive]) -> Primitive:
    """Make the primitive of a class that messages call `text`. Raises `PrimitiveError`."""
    try:
        primitive = kind()
    except Exception as error:
        raise PrimitiveError(
            f"{text}: expected a class that can be called without arguments, "
            f"got {type(error).__name__}: {error}"
        ) from None
    try:
        axes = primitive.axes
    except Exception as error:
        raise PrimitiveError(
            f"{text}: expected axes that can be read, got {type(error).__name__}: {error}"
        ) from None
    _check_axes(text, axes)
    maps_of(primitive)
    return primitive


def _other_file(path: Path) -> str:
    """What there is instead of a Python file: a directory, or a file of a name that is near."""
    if path.is_dir():
        return f"got a directory: write {path}/file.py:Class"
    stem, ending, name = str(path).rpartition(".py")
    if name and Path(f"{stem}{ending}").is_file():
        return f"found none: write {stem}{ending}:{name.lstrip('.') if name[0] == '.' else 'Class'}"
    files = [str(file) for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return f"found none{nearest(str(path), files) or ': check the path'}"


def _class_of(text: str, file: str, name: str, namespace: Mapping[str, object]) -> type[Primitive]:
    """The class of that name, or the only primitive that a file defines. Raises `TargetError`."""
    kinds = {
        key: value
        for key, value in namespace.items()
        if isinstance(value, type) and issubclass(value, Primitive) and value is not Primitive
    }
    defined = {key: kind for key, kind in kinds.items() if kind.__module__ == Path(file).stem}
    if name in kinds or (not name and len(defined) == 1):
        return kinds[name or next(iter(defined))]
    if isinstance(namespace.get(name), type):
        raise TargetError(
            f"{text}: expected a class that derives from primepar.Primitive, got one that does "
            f"not: write class {name}(Primitive)"
        )
    if not kinds:
        raise TargetError(
            f"{text}: expected a class that derives from primepar.Primitive, got none in {file}: "
            f"write class {name or 'Mine'}(Primitive)"
        )
    choices = " or ".join(f"{file}:{key}" for key in defined or kinds)
    near = nearest(name, defined or kinds, f"{file}:") or f": write {choices}"
    got = f"no class {name}" if name else "several primitives" if len(defined) > 1 else "no name"
    raise TargetError(f"{text}: expected a primitive of {file}, got {got}{near}")


def _install(error: BaseException) -> str:
    """What to do about a module that is not there."""
    if isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
        return ": install it in this environment, or correct its name"
    return ""


def _check_axes(text: str, axes: object) -> None:
    """Raise `PrimitiveError` unless axes are names, or a mapping from names to names of sides."""
    names = [*axes, *axes.values()] if isinstance(axes, Mapping) else axes
    if not isinstance(names, tuple | list) or not all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        raise PrimitiveError(
            f'{text}: expected axes like ("r", "c") or {{"r": "q", "e": "d"}}, got {axes!r}'
            f"{_as_tuple(axes)}"
        )


def _as_tuple(axes: object) -> str:
    """`: write ("r",)` for axes that are a string: one name, or a letter for each axis."""
    if not isinstance(axes, str) or not axes.isidentifier():
        return ""
    names = list(axes) if 1 < len(axes) < LONGEST_LETTERS else [axes]
    listed = ", ".join(f'"{name}"' for name in names) + "," * (len(names) == 1)
    return f": write ({listed})"


def last_line(error: BaseException, path: str) -> int:
    """Line of `path` where the error arose."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == path), 0)
